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

from modules.data.Augmentation import NO_AUGMENTATION, Augmentation, draw_augmentation
from modules.data.buckets import CropBox, crop_box
from modules.data.concepts import Views

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.config.DataConfig import DataConfig
    from modules.data.buckets import Buckets
    from modules.data.concepts import Dataset


def with_views(dataset: Dataset, data: DataConfig, seed: int) -> tuple[Dataset, np.ndarray]:
    """A dataset of pictures as one of views, and int32[N], the resolution of each, in pixels.

    Held-out pictures have one view: as they are, in the first resolution.
    """
    resolutions = [resolutions_of(concept, data) for concept in dataset.concepts]
    augmented = np.array([concept.augmentation.is_on for concept in dataset.concepts], bool)[dataset.concept_index]
    held_out = np.zeros(len(dataset), bool) if dataset.held_out is None else dataset.held_out
    augmented &= ~held_out
    num_variants = np.where(augmented, data.augmentation_variants, 1)
    num_resolutions = np.array([len(values) for values in resolutions])[dataset.concept_index]
    num_resolutions = np.where(held_out, 1, num_resolutions)

    num_views = num_variants * num_resolutions
    picture = np.repeat(np.arange(len(dataset)), num_views)
    first = np.cumsum(num_views) - num_views
    place, variant = np.divmod(np.arange(len(picture)) - first[picture], num_variants[picture])
    variant = np.where(augmented[picture], variant, -1).astype(np.int32)
    table = np.zeros((len(resolutions), max(map(len, resolutions))), np.int32)
    for number, values in enumerate(resolutions):
        table[number, : len(values)] = values
    resolution = table[dataset.concept_index[picture], place]
    if len(picture) == len(dataset) and not augmented.any():
        return dataset, resolution
    views = replace(
        dataset,
        paths=[dataset.paths[number] for number in picture.tolist()],
        concept_index=dataset.concept_index[picture],
        widths=dataset.widths[picture],
        heights=dataset.heights[picture],
        views=Views(first[picture], variant, seed),
        held_out=None if dataset.held_out is None else dataset.held_out[picture],
        masks=dataset.masks and [dataset.masks[number] for number in picture.tolist()],
    )
    return views, resolution


def resolutions_of(concept: ConceptConfig, data: DataConfig) -> list[int]:
    """The resolutions in which the pictures of a concept are shown."""
    if concept.resolution is not None:
        return [concept.resolution]
    return list(dict.fromkeys(data.resolutions)) or [data.resolution]


def augmentation_of(dataset: Dataset, sample: int) -> Augmentation:
    """What a sample does to its picture beside resizing it.

    Drawn by the file's name, not by its place in the list, so that pictures that are added leave the caches valid.
    """
    if dataset.views is None or dataset.views.variant[sample] < 0:
        return NO_AUGMENTATION
    settings = dataset.concepts[dataset.concept_index[sample]].augmentation
    name = os.path.basename(dataset.paths[sample])
    return draw_augmentation(settings, dataset.views.seed, name, int(dataset.views.variant[sample]))


def crop_of(dataset: Dataset, buckets: Buckets, sample: int) -> CropBox:
    """How a sample's picture comes to its bucket; of a mirrored one, in the mirrored picture.

    Turned pictures are cut from around this box and then turned about its centre.
    """
    size = int(dataset.widths[sample]), int(dataset.heights[sample])
    return crop_box(*size, *buckets.shapes[buckets.index[sample]], augmentation_of(dataset, sample))
