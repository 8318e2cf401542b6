"""The number of optimizer steps of an epoch and of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig


def count_steps(num_samples: int, global_batch: int) -> int:
    """Optimizer steps per epoch. Exact for any buckets, because the remainders of buckets are pooled."""
    return -(-num_samples // global_batch)


def steps_until(epochs: float, per_epoch: int, backup: Mapping[str, Any] | None = None) -> int:
    """Optimizer steps from the start of a run until `epochs` have passed.

    backup: state of the backup that the run resumes from. Other images may have made the epochs before it shorter or
    longer than those to come; for a time before it, the result is some step before it.
    """
    steps = per_epoch * epochs
    if backup:
        steps += backup["step"] - (per_epoch * backup["epoch"] + min(backup["step_in_epoch"], per_epoch))
    return max(0, math.ceil(steps))


def planned_steps(epochs: int, per_epoch: int, backup: Mapping[str, Any] | None = None) -> int:
    """Optimizer steps of a run of `epochs`, which max_steps may end before. backup: as for `steps_until`."""
    return max(backup["step"] if backup else 0, steps_until(epochs, per_epoch, backup))


def total_steps(config: TrainConfig, per_epoch: int, backup: Mapping[str, Any] | None = None) -> int:
    """Optimizer steps of the whole run. backup: as for `steps_until`."""
    planned = planned_steps(config.epochs, per_epoch, backup)
    return min(planned, config.max_steps or planned)
