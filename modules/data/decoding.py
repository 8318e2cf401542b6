"""Reads and decodes what a sample consists of, and finds the images of a dataset for which that fails."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from modules.config.counted import counted
from modules.data.clips import clip_frames, clip_of, load_clip
from modules.data.conditions.ConditionData import Decoded
from modules.data.crops import crop_of_sample, cropped, whole_size
from modules.data.errors import DataError, ImageError
from modules.data.image_views import augmentation_of
from modules.data.images import adjust_colors, fit_image, load_image, to_array
from modules.data.masks import is_mask_clip, load_mask, mask_of
from modules.data.read_ahead import read_ahead
from modules.data.shards import WHOLE, Progress, Shard, shard_of

if TYPE_CHECKING:
    from modules.data.buckets import Buckets
    from modules.data.conditions.ConditionData import ConditionData
    from modules.data.Dataset import Dataset


def load_pixels(
    dataset: Dataset, buckets: Buckets, sample: int, conditions: Sequence[ConditionData] = ()
) -> np.ndarray:
    """The image of a sample as float32[3, H, W] in [-1, 1], fitted to its bucket, or its clip as float32[3, F, H, W].

    A condition may replace it. Raises ImageError.
    """
    for condition in conditions:
        if condition.replaces_image:
            return condition.load_pixels(dataset, buckets, sample)
    augmentation = augmentation_of(dataset, sample)
    if clip := clip_of(dataset, sample):
        crop = crop_of_sample(dataset, sample)
        return load_clip(dataset.paths[sample], clip, buckets.shape_of(sample), augmentation, crop)
    whole = load_image(dataset.paths[sample])
    image = fit_image(cropped(dataset, sample, whole), *buckets.shape_of(sample), augmentation)
    return to_array(adjust_colors(image, augmentation))


def decoded_or_reason(
    dataset: Dataset, buckets: Buckets, sample: int, conditions: Sequence[ConditionData]
) -> Decoded | str:
    """A sample with what belongs to it, or the reason why it can't be read; of a clip, the frames are not read yet."""
    mask, path, shape = None, mask_of(dataset, sample), buckets.shape_of(sample)
    augmentation, clip = augmentation_of(dataset, sample), clip_of(dataset, sample)
    crop = crop_of_sample(dataset, sample)
    is_streamed = clip is not None and clip.num_frames > 1
    pixels = None if is_streamed else _pixels_or_reason(dataset, buckets, sample, conditions)
    if isinstance(pixels, str):
        return pixels
    if path and not is_mask_clip(path):  # else a condition reads it
        size, is_alpha = whole_size(dataset, sample), path == dataset.paths[sample]
        try:
            mask = load_mask(path, size, *shape, augmentation, is_alpha, crop)
        except ImageError as error:
            return f"its mask can't be read: {error.reason}"
    try:
        loaded = {one.spec.name: one.load(dataset, buckets, sample, mask) for one in conditions}
    except ImageError as error:
        return error.reason
    if clip is None or not is_streamed:
        return Decoded(pixels, mask, loaded)
    frames = partial(clip_frames, dataset.paths[sample], clip, shape, augmentation, crop)
    return Decoded(None, mask, loaded, frames, clip.num_frames)


def find_undecodable(
    dataset: Dataset,
    buckets: Buckets,
    shard: Shard = WHOLE,
    progress: Progress = lambda text, done, total: None,
    conditions: Sequence[ConditionData] = (),
) -> dict[int, str]:
    """Decodes this rank's shard of all images, for methods that train on pixels.

    Returns the unusable images (sample id -> reason).
    """
    undecodable: dict[int, str] = {}
    samples = shard_of(np.flatnonzero(dataset.num_views).tolist(), shard)  # one view per image is enough
    images = read_ahead(lambda sample: _pixels_or_reason(dataset, buckets, sample, conditions), samples)
    for done, (sample, pixels) in enumerate(zip(samples, images, strict=True), start=1):
        if isinstance(pixels, str):
            undecodable[sample] = pixels
        progress("Checking images", done, len(samples))
    return undecodable


def check_unusable(dataset: Dataset, unusable: dict[int, str], max_share: float) -> None:
    """Raises DataError if more images are unusable than data.max_unreadable_share allows, or a folder is gone."""
    images = dataset.images_of(unusable)
    for number, path in _gone_folders(dataset, unusable):
        raise DataError.at(
            f"concepts.{number}.path",
            f"{path}: the folder is gone since its images were found; bring it back, such as by "
            "connecting its disk, and start again.",
        )
    count = len(images) + len(dataset.unreadable)
    total = dataset.num_images + len(dataset.unreadable)
    if count > max_share * total or count == total:
        listed = [path for path, _ in dataset.unreadable] + [dataset.paths[sample] for sample in images]
        raise DataError(
            f"{count} of {counted(total, 'image')} can't be used, more than data.max_unreadable_share {max_share:g} "
            f"allows, such as {listed[0]}: repair or remove them, or increase the setting."
        )


def _gone_folders(dataset: Dataset, unusable: Iterable[int]) -> Iterator[tuple[int, str]]:
    """The number and folder of each concept with unusable images whose folder is gone."""
    for number in sorted({int(dataset.concept_index[sample]) for sample in unusable}):
        if not os.path.isdir(os.path.expanduser(dataset.concepts[number].path)):
            yield number, dataset.concepts[number].path


def _pixels_or_reason(
    dataset: Dataset, buckets: Buckets, sample: int, conditions: Sequence[ConditionData]
) -> np.ndarray | str:
    try:
        return load_pixels(dataset, buckets, sample, conditions)
    except ImageError as error:
        return error.reason
