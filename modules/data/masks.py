"""Mask pictures: what of a picture is learnt (white) and what is not (black). Pillow only.

The mask of `cat.jpg` is a picture beside it called `cat-masklabel`, `cat-mask`, `cat_mask` or `cat.mask`, with any
ending that pictures have. A mask is never trained on as a picture of its own.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from modules.data.errors import DataError
from modules.data.Look import PLAIN, Look
from modules.data.pictures import EXTENSIONS, fit_picture, load_picture, read_size

if TYPE_CHECKING:
    from modules.data.concepts import Dataset

SUFFIXES = ("-masklabel", "-mask", "_mask", ".mask")
NUM_READERS = 8


def is_mask(name: str, names: Collection[str]) -> bool:
    """Whether the file `name` is the mask of a picture among `names`, the files of its folder."""
    stem = _masked_stem(name)
    return stem is not None and any(
        stem + ending in names for extension in EXTENSIONS for ending in (extension, extension.upper())
    )


def find_masks(dataset: Dataset) -> list[str | None]:
    """The path of each sample's mask, None where it has none.

    Raises DataError for a mask that does not have its picture's aspect ratio, PictureError for one that can't be read.
    """
    in_folder: dict[str, dict[str, str]] = {}
    masks = []
    for path in dataset.paths:
        folder, name = os.path.split(path)
        if folder not in in_folder:
            in_folder[folder] = _masks_in(folder)
        masks.append(in_folder[folder].get(os.path.splitext(name)[0]))
    of_file = {masks[sample]: sample for sample in dataset.pictures_of(range(len(dataset))) if masks[sample]}
    with ThreadPoolExecutor(NUM_READERS) as readers:
        for (mask, sample), size in zip(of_file.items(), readers.map(read_size, of_file), strict=True):
            _check_aspect(mask, size, dataset.paths[sample], (dataset.widths[sample], dataset.heights[sample]))
    return masks


def load_mask(path: str, size: tuple[int, int], bucket_w: int, bucket_h: int, look: Look = PLAIN) -> np.ndarray:
    """The mask as float32[1, H, W] in 0..1, cut as its picture is; H, W are the bucket's, in pixels.

    size: of the upright picture; a mask of another size is scaled to it first. Raises PictureError.
    """
    mask = load_picture(path).convert("L")
    if mask.size != size:
        mask = mask.resize(size, Image.Resampling.BILINEAR)
    fitted = np.asarray(fit_picture(mask, bucket_w, bucket_h, look), np.float32)
    return fitted[None] / 255


def _masks_in(folder: str) -> dict[str, str]:
    """The masks in a folder by the stem of their picture; of several for one, that of the first suffix."""
    found: dict[str, str] = {}
    names = sorted(os.listdir(folder))
    for suffix in reversed(SUFFIXES):
        for name in names:
            stem = _masked_stem(name)
            if stem is not None and os.path.splitext(name)[0] == stem + suffix:
                found[stem] = os.path.join(folder, name)
    return found


def _masked_stem(name: str) -> str | None:
    """The stem of the picture whose mask a file of this name would be."""
    stem, extension = os.path.splitext(name)
    if extension.lower() not in EXTENSIONS:
        return None
    return next((stem.removesuffix(suffix) for suffix in SUFFIXES if stem.endswith(suffix) and stem != suffix), None)


def _check_aspect(mask: str, size: tuple[int, int], picture: str, of_picture: Sequence[int]) -> None:
    (width, height), (picture_w, picture_h) = size, map(int, of_picture)
    # of masks in another size, sides are rounded to whole pixels
    if abs(width * picture_h - height * picture_w) > max(picture_w, picture_h):
        raise DataError(
            f"mask {mask} is {width} x {height} and its picture {os.path.basename(picture)} {picture_w} x {picture_h}: "
            "a mask needs the picture's aspect ratio; save it in the picture's size."
        )
