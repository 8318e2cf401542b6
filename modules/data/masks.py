"""Mask pictures: what of a picture is learnt (white) and what is not (black). Pillow only.

The mask of `cat.jpg` is a picture beside it called `cat-masklabel`, `cat-mask`, `cat_mask` or `cat.mask`, with any
ending that pictures have; upper and lower case are the same. A mask is never trained on as a picture of its own.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from modules.data.Augmentation import NO_AUGMENTATION, Augmentation
from modules.data.errors import DataError
from modules.data.images import EXTENSIONS, fit_image, load_image, size_or_reason

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.data.concepts import Dataset

SUFFIXES = ("-masklabel", "-mask", "_mask", ".mask")
NUM_READERS = 8


def is_mask(name: str, names: Collection[str]) -> bool:
    """Whether the file `name` is the mask of a picture among `names`, the files of its folder in lower case."""
    stem = _masked_stem(name)
    return stem is not None and any(stem.lower() + extension in names for extension in EXTENSIONS)


def with_masks(dataset: Dataset) -> Dataset:
    """`dataset`, of which each picture is one sample, with its masks; without the pictures whose mask can't be read.

    Raises DataError for a mask that does not have its picture's aspect ratio, and where no picture is left.
    """
    masks = find_masks(dataset)
    of_mask = {mask: sample for sample, mask in enumerate(masks) if mask}
    reasons: dict[str, str] = {}
    with ThreadPoolExecutor(NUM_READERS) as readers:
        for (mask, sample), size in zip(of_mask.items(), readers.map(size_or_reason, of_mask), strict=True):
            if isinstance(size, str):
                reasons[mask] = f"its mask {os.path.basename(mask)} can't be read: {size}"
            else:
                _check_aspect(mask, size, dataset.paths[sample], (dataset.widths[sample], dataset.heights[sample]))
    kept = [sample for sample, mask in enumerate(masks) if mask not in reasons]
    if not kept:
        raise DataError(f"the mask of no picture can be read, such as {next(iter(reasons))}: repair or remove them.")
    lost = [(path, reasons[mask]) for path, mask in zip(dataset.paths, masks, strict=True) if mask in reasons]
    return replace(
        dataset,
        paths=[dataset.paths[sample] for sample in kept],
        concept_index=dataset.concept_index[kept],
        widths=dataset.widths[kept],
        heights=dataset.heights[kept],
        masks=[masks[sample] for sample in kept],
        unreadable=[*dataset.unreadable, *lost],
    )


def find_masks(dataset: Dataset) -> list[str | None]:
    """The path of each sample's mask, None where it has none."""
    in_folder: dict[str, dict[str, str]] = {}
    masks = []
    for path in dataset.paths:
        folder, name = os.path.split(path)
        if folder not in in_folder:
            in_folder[folder] = _masks_in(folder)
        stem = os.path.splitext(name)[0]
        masks.append(in_folder[folder].get(stem) or in_folder[folder].get(stem.lower()))
    return masks


def unused_masks_warning(config: TrainConfig, dataset: Dataset) -> str | None:
    """A warning where files are taken for masks and nobody wants masks."""
    if not dataset.num_masks or config.loss.masked_training:
        return None
    return (
        f"{dataset.num_masks} pictures are left out, for by their names they are masks of others: switch "
        "loss.masked_training on to use them so, or rename them."
    )


def load_mask(
    path: str, size: tuple[int, int], bucket_w: int, bucket_h: int, augmentation: Augmentation = NO_AUGMENTATION
) -> np.ndarray:
    """The mask as float32[1, H, W] in 0..1, cut as its picture is; H, W are the bucket's, in pixels.

    size: of the upright picture; a mask of another size is scaled to it first. Raises ImageError.
    """
    mask = load_image(path).convert("L")
    if mask.size != size:
        mask = mask.resize(size, Image.Resampling.BILINEAR)
    fitted = np.asarray(fit_image(mask, bucket_w, bucket_h, augmentation), np.float32)
    return fitted[None] / 255


def _masks_in(folder: str) -> dict[str, str]:
    """The masks in a folder by the stem of their picture, also in lower case; of several, that of the first suffix."""
    found: dict[str, str] = {}
    names = sorted(os.listdir(folder))
    for suffix in reversed(SUFFIXES):
        for name in names:
            stem = _masked_stem(name)
            if stem is not None and os.path.splitext(name)[0].lower() == stem.lower() + suffix:
                found[stem] = os.path.join(folder, name)
    return {stem.lower(): path for stem, path in found.items()} | found


def _masked_stem(name: str) -> str | None:
    """The stem of the picture whose mask a file of this name would be."""
    stem, extension = os.path.splitext(name)
    if extension.lower() not in EXTENSIONS:
        return None
    lower = stem.lower()
    return next((stem[: -len(suffix)] for suffix in SUFFIXES if lower.endswith(suffix) and lower != suffix), None)


def _check_aspect(mask: str, size: tuple[int, int], picture: str, of_picture: Sequence[int]) -> None:
    (width, height), (picture_w, picture_h) = size, map(int, of_picture)
    # of masks in another size, sides are rounded to whole pixels
    if abs(width * picture_h - height * picture_w) > max(picture_w, picture_h):
        raise DataError(
            f"mask {mask} is {width} x {height} and its picture {os.path.basename(picture)} {picture_w} x {picture_h}: "
            "a mask needs the picture's aspect ratio; save it in the picture's size."
        )
