"""Finds the images of a run and assigns their buckets, without decoding them and without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.config.methods import facts_of
from modules.data.buckets import Buckets, assign_buckets, check_resolution
from modules.data.concepts import Dataset, scan
from modules.data.folder_walk import Outputs
from modules.data.holdout import hold_out
from modules.data.image_views import with_views
from modules.data.masks import with_masks

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.families.Family import Family


def check_sizes(config: TrainConfig, family: Family) -> None:
    """Raises DataError for sizes of training or sample images that the family can't process."""
    data = config.data
    step = data.bucket_step if data.bucketing else family.align
    check_resolution(data.resolution, step, family.align, family=family.name)
    for number, resolution in enumerate(data.resolutions):
        check_resolution(resolution, step, family.align, f"data.resolutions.{number}", family.name)
    for number, concept in enumerate(config.concepts):
        if concept.enabled and concept.resolution is not None:
            check_resolution(concept.resolution, step, family.align, f"concepts.{number}.resolution", family.name)
    for number, sample in enumerate(config.sampling.samples):
        for side in ("width", "height"):
            setting = f"sampling.samples.{number}.{side}"
            check_resolution(getattr(sample, side), family.align, family.align, setting, family.name)


def prepare_data(config: TrainConfig, family: Family) -> tuple[Dataset, Buckets]:
    """Raises DataError for sizes that the family can't process and for concepts without images."""
    check_sizes(config, family)
    data = config.data
    dataset = scan(config.concepts, outputs=Outputs.of(config))
    if config.loss.masked_training and facts_of(config).uses_denoiser:
        dataset = with_masks(dataset)
    dataset, resolution = with_views(hold_out(dataset, data.validation_share), data, config.seed)
    buckets = assign_buckets(
        dataset.widths, dataset.heights, resolution, data.bucket_step, data.max_aspect, data.bucketing
    )
    return dataset, buckets
