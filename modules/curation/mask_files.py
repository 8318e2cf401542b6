"""Where the masks of images are, as the trainer reads them, and how they are written."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from modules.config.errors import UserError
from modules.curation.FileChanges import FileChanges, fingerprint, read_present
from modules.data.captions import file_stem, path_in_concept
from modules.data.images import load_alpha, load_gray_on_black, may_be_transparent
from modules.data.masks import mask_beside, mask_files_of, masks_in_folder
from modules.data.videos import is_video

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig

SUFFIX = "-masklabel"  # the first that is looked for, so that a new mask is the one that is read
EXTENSION = ".png"


def mask_there(image: str, concept: ConceptConfig) -> str:
    """The file that the image at `image` has its mask in; "" if it has none. Its alpha channel does not count."""
    folder = _folder(image, concept)
    if not folder:
        return mask_beside(image)
    found, stem = masks_in_folder(folder), file_stem(image)
    return found.get(stem) or found.get(stem.lower()) or ""


def mask_path(image: str, concept: ConceptConfig) -> str:
    """Where a new mask goes: into the concept's mask folder if it has one, else beside the image."""
    folder = _folder(image, concept)
    name = f"{file_stem(image)}{'' if folder else SUFFIX}{EXTENSION}"
    return os.path.join(folder or os.path.dirname(image), name)


class MaskFile:
    """The mask of one image of a concept: read as training reads it, and written where it looks first.

    Its files are written only if they are what `read` or the last `changes` that was carried out left.
    """

    def __init__(self, image: str, concept: ConceptConfig):
        self.image = image
        self._concept = concept
        self._seen: dict[str, str] = {}
        self._next: dict[str, str] = {}

    def read(self, size: tuple[int, int]) -> np.ndarray | None:
        """The mask as uint8[H, W] in the size of the upright image; None if the image has none.

        Where the concept takes transparency as masks, that of an image without a file is its mask. Raises ImageError,
        and UserError if a file can't be read.
        """
        path = self.look()
        if path:
            mask = load_gray_on_black(path)
        elif self._concept.alpha_mask and not is_video(self.image) and may_be_transparent(self.image):
            mask = load_alpha(self.image)
        else:
            return None
        if mask.size != size:  # as data/masks.py does it
            mask = mask.resize(size, Image.Resampling.BILINEAR)
        return np.array(mask)

    def look(self) -> str:
        """Take the files as they are now, and return which of them is read as the mask; "" for none.

        Raises UserError if a file can't be read.
        """
        there, self._seen = self._present()
        return there

    def is_current(self) -> bool:
        """Whether the files are what they were when they were last read or written here. Raises UserError."""
        return self._present()[1] == self._seen

    def _present(self) -> tuple[str, dict[str, str]]:
        """The file that is read as the mask, and the fingerprints of those that a change would replace: all that the
        image has, of which another one would be read in place of one that is removed."""
        there, target = mask_there(self.image, self._concept), mask_path(self.image, self._concept)
        own = mask_files_of(self.image, _folder(self.image, self._concept))
        try:
            contents = {path: read_present(path) for path in dict.fromkeys([*own, target])}
        except OSError as error:
            path = error.filename or target
            raise UserError(f"{path} can't be read ({error.strerror}): make it a readable file.") from error
        return there, {path: fingerprint(content) for path, content in contents.items() if content is not None}

    def changes(self, values: np.ndarray | None) -> FileChanges:
        """What gives the image this mask, uint8[H, W], in place of all files that it has one in; None removes them."""
        target = mask_path(self.image, self._concept)
        new: dict[str, bytes | None] = {path: None for path in self._seen if not _same(path, target)}
        seen = dict(self._seen)
        if values is not None:
            file = io.BytesIO()
            Image.fromarray(values).save(file, "PNG")
            new[target] = file.getvalue()
        elif target in seen:
            new[target] = None
        self._next = {path: fingerprint(content) for path, content in new.items() if content is not None}
        return FileChanges(new, seen)

    def take_written(self) -> None:
        """What `changes` gave last has been written."""
        self._seen = self._next


def _same(path: str, other: str) -> bool:
    """Whether both are one file, as names in different case are on some systems."""
    return path == other or (os.path.exists(path) and os.path.exists(other) and os.path.samefile(path, other))


def _folder(image: str, concept: ConceptConfig) -> str:
    """The folder for masks of images in this one's folder; "" if they lie beside the images."""
    root = os.path.expanduser(concept.mask_folder)
    return os.path.join(root, os.path.dirname(path_in_concept(image, concept))) if root else ""
