"""Learning-rate schedules: a share of the base rate as a pure function of the optimizer step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modules.config.ScheduleConfig import ScheduleConfig


def learning_rate_share(config: ScheduleConfig, step: int, total_steps: int) -> float:
    """The share of the base learning rate that optimizer step `step` (from 0) of `total_steps` uses.

    The warm-up rises linearly and reaches 1 with its last step; linear and cosine fall from there to `final_share`
    at the end of the run. Cosine: Loshchilov & Hutter 2017, arXiv 1608.03983, without restarts.
    """
    warmup = warmup_steps(config, total_steps)
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    falling = {
        "constant": 1.0,
        "linear": 1.0 - progress,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
    }[config.name]
    return config.final_share + (1.0 - config.final_share) * falling


def warmup_steps(config: ScheduleConfig, total_steps: int) -> int:
    """Optimizer steps of warm-up: below 1 the setting is a share of all steps."""
    if config.warmup < 1:
        return math.ceil(config.warmup * total_steps)
    return int(config.warmup)
