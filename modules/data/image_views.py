"""The views of an image: one for each resolution and, within a resolution, one for each augmented variant.

Every view is a sample with its own bucket and cache entry. The plan of an epoch (epoch_plan.py) draws one view each
time an image is used, so views do not make an epoch longer. Augmentations are drawn by hash, so cached and freshly
decoded views are the same.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from modules.config.counted import counted
from modules.data.Augmentation import Augmentation, draw_augmentation, fixed_augmentation
from modules.data.buckets import CropBox, crop_box
from modules.data.Dataset import Views
from modules.data.errors import DataError

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.config.DataConfig import DataConfig
    from modules.data.buckets import Buckets
    from modules.data.Dataset import Dataset

MAX_VIEWS = 20_000_000  # whose paths and sizes take some GB of memory


def with_views(dataset: Dataset, data: DataConfig, seed: int) -> tuple[Dataset, np.ndarray]:
    """Expands a dataset of images into one of views; also returns int32[N], the resolution of each view in pixels.

    Held-out images have a single view: without variants, in the first resolution.
    Raises DataError for more than MAX_VIEWS.
    """
    resolutions = [resolutions_of(concept, data) for concept in dataset.concepts]
    augmented = np.array([concept.augmentation.is_on for concept in dataset.concepts], bool)[dataset.concept_index]
    held_out = np.zeros(len(dataset), bool) if dataset.held_out is None else dataset.held_out
    augmented &= ~held_out
    num_variants = np.where(augmented, data.augmentation_variants, 1)
    num_resolutions = np.array([len(values) for values in resolutions])[dataset.concept_index]
    num_resolutions = np.where(held_out, 1, num_resolutions)

    num_views = num_variants * num_resolutions
    if num_views.sum() > MAX_VIEWS:
        raise DataError.at(
            "data.augmentation_variants",
            f"{data.augmentation_variants}: with {counted(len(dataset), 'image')} these are "
            f"{num_views.sum()} variants to encode and cache, above the limit of {MAX_VIEWS}; use fewer.",
        )
    image = np.repeat(np.arange(len(dataset)), num_views)
    first = np.cumsum(num_views) - num_views
    resolution_number, variant = np.divmod(np.arange(len(image)) - first[image], num_variants[image])
    variant = np.where(augmented[image], variant, -1).astype(np.int32)
    table = np.zeros((len(resolutions), max(map(len, resolutions))), np.int32)
    for number, values in enumerate(resolutions):
        table[number, : len(values)] = values
    resolution = table[dataset.concept_index[image], resolution_number]
    if len(image) == len(dataset) and not augmented.any():
        return dataset, resolution
    return replace(dataset.take(image), views=Views(first[image], variant, seed)), resolution


def resolutions_of(concept: ConceptConfig, data: DataConfig) -> list[int]:
    """The resolutions in which the images of a concept are trained."""
    if concept.resolutions:
        return list(dict.fromkeys(concept.resolutions))
    if concept.resolution is not None:
        return [concept.resolution]
    return list(dict.fromkeys(data.resolutions)) or [data.resolution]


def augmentation_of(dataset: Dataset, sample: int) -> Augmentation:
    """The augmentation of a sample.

    It is drawn by file name, not by position in the list, so that adding images keeps the caches valid.
    """
    settings = dataset.concepts[dataset.concept_index[sample]].augmentation
    if dataset.views is None or dataset.views.variant[sample] < 0:
        return fixed_augmentation(settings)
    name = os.path.basename(dataset.paths[sample])
    return draw_augmentation(settings, dataset.views.seed, name, int(dataset.views.variant[sample]))


def crop_of(dataset: Dataset, buckets: Buckets, sample: int) -> CropBox:
    """How the image of a sample is resized and cropped to its bucket, in the coordinates after mirroring.

    A rotated image is cropped with a margin around this box and then rotated about its center.
    """
    size = int(dataset.widths[sample]), int(dataset.heights[sample])
    return crop_box(*size, *buckets.shape_of(sample), augmentation_of(dataset, sample))
