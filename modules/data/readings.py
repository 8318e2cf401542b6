"""What is read of a file in another way than by the versions that did not know better, for the keys of the caches.

Only files whose pixels have changed with this get new keys; all others keep theirs, and with that their caches.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from modules.data.errors import ImageError
from modules.data.image_formats import EXTENSIONS
from modules.data.images import color_conversion, load_alpha, may_be_transparent
from modules.data.videos import EXTENSIONS as VIDEO_EXTENSIONS
from modules.data.videos import read_changes

# To be increased whenever `reading_of` finds more, so that what is known of files is looked up again.
READING_VERSION = 1


def reading_of(path: str, files: Sequence[str], as_mask: bool) -> str:
    """Names of what is read in another way: "" for most files, and for those that are no images or videos.

    files: that of an image or a video, or those of a folder of frames. as_mask: whether it is read as a mask.
    """
    try:
        return " ".join(_changes(path, files, as_mask))
    except ImageError:  # which is told when it is decoded
        return ""


def _changes(path: str, files: Sequence[str], as_mask: bool) -> Iterator[str]:
    if _extension(path) in VIDEO_EXTENSIONS - EXTENSIONS:
        yield from read_changes(path)
        return
    images = [file for file in files if _extension(file) in EXTENSIONS]
    if any(color_conversion(image) == "converted" for image in images):
        yield "srgb"
    if as_mask and any(_is_clear_somewhere(image) for image in images):
        yield "black"


def _is_clear_somewhere(path: str) -> bool:
    return may_be_transparent(path) and load_alpha(path).getextrema() != (255, 255)


def _extension(path: str) -> str:
    return os.path.splitext(path)[1].lower()
