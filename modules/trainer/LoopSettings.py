"""What the model-agnostic loop is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from modules.config.EmaConfig import EmaConfig

SLOWEST_STEP_SECONDS = 60.0


@dataclass(frozen=True)
class LoopSettings:
    """max_grad_norm: the gradient is scaled down to this norm where it is larger; 0 for no clipping.

    slowest_step_seconds: a step may always take this long before its rank counts as hung.
    """

    max_grad_norm: float = 0.0
    ema: EmaConfig = field(default_factory=EmaConfig)
    mixed_precision: Literal["no", "bf16", "fp16"] = "no"
    seed: int = 42
    slowest_step_seconds: float = SLOWEST_STEP_SECONDS
