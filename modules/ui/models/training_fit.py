"""How images are fitted to the sizes in which they are trained, by the functions that training uses. No Tk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from modules.data.buckets import ENLARGED, Buckets, are_enlarged, assign_buckets, bucket_shapes, crop_box
from modules.data.errors import DataError
from modules.data.image_views import resolutions_of
from modules.ui.models.DatasetView import DatasetItem, Trait, size_in_pixels

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.config.DataConfig import DataConfig
    from modules.config.TrainConfig import TrainConfig


@dataclass(frozen=True)
class Fit:
    """size: width and height in which an image is trained, in pixels. scale: by how much it is enlarged, below 1
    reduced. lost: the share of its area that is cropped to fill `size`."""

    size: tuple[int, int]
    scale: float
    lost: float

    @property
    def is_enlarged(self) -> bool:
        """Whether it is upscaled so much that it is trained blurred."""
        return self.scale > ENLARGED

    def describe(self) -> str:
        """A part of a sentence."""
        trained = f"trained at {size_in_pixels(*self.size)}"
        how = f"{'upscaled' if self.scale > 1 else 'scaled'} to {self.scale:.0%}"
        return f"{trained}, {how}" + (f", {self.lost:.1%} cropped" if self.lost >= 0.0005 else "")


def fit_of(part: tuple[int, int], concept: ConceptConfig, data: DataConfig) -> Fit | None:
    """How an image of this concept is trained, without augmentation, at the concept's first resolution.

    part: its width and height, or those of its crop. None if it has none, or the settings contradict each other.
    """
    if not part[0]:
        return None
    try:
        shape = training_buckets([part], concept, data).shape_of(0)
    except DataError:  # said at the settings
        return None
    size = crop_box(*part, *shape).size
    return Fit(shape, max(size[0] / part[0], size[1] / part[1]), 1 - shape[0] * shape[1] / (size[0] * size[1]))


def training_buckets(parts: Sequence[tuple[int, int]], concept: ConceptConfig, data: DataConfig) -> Buckets:
    """The buckets of images with these widths and heights. Raises DataError for settings that contradict each other."""
    widths, heights = np.array(parts).T
    rule = data.bucket_step, data.max_aspect, data.bucketing, not data.no_upscale, data.max_side, data.fixed_shape
    return assign_buckets(widths, heights, resolutions_of(concept, data)[0], *rule)


def training_shapes(concept: ConceptConfig, data: DataConfig) -> list[tuple[int, int]]:
    """The sizes, (width, height), in which images of this concept can be trained; none if settings contradict."""
    resolution = resolutions_of(concept, data)[0]
    if not data.bucketing:
        return [data.fixed_shape or (resolution, resolution)]
    try:
        return bucket_shapes(resolution, data.bucket_step, data.max_aspect, data.max_side)
    except DataError:
        return []


def mark_small(config: TrainConfig, items: Sequence[DatasetItem]) -> None:
    """Mark the images that training enlarges, at the first resolution of their concept."""
    for number in {item.concept for item in items}:
        sized = [item for item in items if item.concept == number and item.width]
        if not sized:
            continue
        parts = [item.trained_part for item in sized]
        try:
            buckets = training_buckets(parts, config.concepts[number], config.data)
        except DataError:  # said at the settings
            return
        for item, is_small in zip(sized, are_enlarged(buckets, *np.array(parts).T), strict=True):
            item.set_trait(Trait.SMALL, bool(is_small))
