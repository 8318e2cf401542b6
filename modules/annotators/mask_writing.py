"""Where masks are saved, as the trainer reads them, and their files."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

from modules.config.errors import UserError
from modules.curation.FileChanges import FileChanges, fingerprint, read_present
from modules.curation.Journal import Journal
from modules.data.captions import file_stem, path_in_concept
from modules.data.masks import mask_beside, masks_in_folder

if TYPE_CHECKING:
    from PIL import Image

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


class MaskWriter:
    """Saves masks one by one, each of which is there or not at any moment; together they are one step of the journal.

    A context: the step is complete when it is left. label: of the step. Raises UserError if the journal can't be
    written.
    """

    def __init__(self, concept: ConceptConfig, label: str):
        self._concept = concept
        self._change = Journal(os.path.expanduser(concept.path)).long_change(label)

    def __enter__(self) -> MaskWriter:
        self._write = self._change.__enter__()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._change.__exit__(*exc_info)

    def __call__(self, image: str, mask: Image.Image) -> None:
        """Give an image this mask, and remove one that it has in another place or format. Raises UserError."""
        path, before = mask_path(image, self._concept), mask_there(image, self._concept)
        file = io.BytesIO()
        mask.save(file, "PNG")
        removed: dict[str, bytes | None] = {before: None} if before and before != path else {}
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            seen = {one: fingerprint(read_present(one)) for one in (path, *removed)}
        except OSError as error:
            raise UserError(f"{error.filename or path} can't be read ({error.strerror}): make it readable.") from error
        self._write.apply(FileChanges({path: file.getvalue(), **removed}, seen))


def _folder(image: str, concept: ConceptConfig) -> str:
    """The folder for masks of images in this one's folder; "" if they lie beside the images."""
    root = os.path.expanduser(concept.mask_folder)
    return os.path.join(root, os.path.dirname(path_in_concept(image, concept))) if root else ""
