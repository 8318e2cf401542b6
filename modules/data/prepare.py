"""The pictures and buckets of a run, from its settings; nothing is decoded and torch is not needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.data.buckets import Buckets, assign_buckets, check_resolution
from modules.data.concepts import Dataset, scan

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.families.Family import Family


def prepare_data(config: TrainConfig, family: Family) -> tuple[Dataset, Buckets]:
    """Raises DataError, one sentence, for sizes that the family can't take and for concepts without pictures."""
    data = config.data
    step = data.bucket_step if data.bucketing else family.align
    check_resolution(data.resolution, step, family.align, family=family.name)
    for number, sample in enumerate(config.sampling.samples):
        for side in ("width", "height"):
            setting = f"sampling.samples.{number}.{side}"
            check_resolution(getattr(sample, side), family.align, family.align, setting, family.name)
    dataset = scan(config.concepts)
    buckets = assign_buckets(
        dataset.widths, dataset.heights, data.resolution, data.bucket_step, data.max_aspect, data.bucketing
    )
    return dataset, buckets
