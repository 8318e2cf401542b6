"""The names of mask images.

The mask of `cat.jpg`, of `cat.mp4` or of the frames in a folder `cat` is an image next to it named `cat-masklabel`,
`cat-mask`, `cat_mask` or `cat.mask`, with any image extension, ignoring case.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from modules.data.image_formats import EXTENSIONS

SUFFIXES = ("-masklabel", "-mask", "_mask", ".mask")


def is_mask(name: str, stems: Collection[str]) -> bool:
    """Whether the file `name` is a mask. stems: of the images and videos in its folder, in lower case."""
    stem = masked_stem(name)
    return stem is not None and stem.lower() in stems


def masked_stem(name: str) -> str | None:
    """The stem of the image that a file of this name is a mask of; None if the name is not that of a mask."""
    if "mask" not in name.lower():  # as most are: it is asked for each file of a folder
        return None
    stem, extension = os.path.splitext(name)
    if extension.lower() not in EXTENSIONS:
        return None
    lower = stem.lower()
    return next((stem[: -len(suffix)] for suffix in SUFFIXES if lower.endswith(suffix) and lower != suffix), None)
