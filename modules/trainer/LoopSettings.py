"""Settings of the model-agnostic training loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from modules.config.EmaConfig import EmaConfig

SLOWEST_STEP_SECONDS = 60.0


@dataclass(frozen=True)
class LoopSettings:
    """max_grad_norm: gradients are clipped to this norm; 0 disables clipping.

    fused_backward: each parameter is updated within the backward pass, and its gradient freed. A step whose loss is not
        finite is skipped; a gradient that is not finite ends the run, because other parameters are updated by then.
    remedy_for_nan: what to do after too many skipped steps, as the end of a sentence.
    slowest_step_seconds: a rank never counts as hung before a step has taken this long.
    """

    max_grad_norm: float = 0.0
    ema: EmaConfig = field(default_factory=EmaConfig)
    mixed_precision: Literal["no", "bf16", "fp16"] = "no"
    seed: int = 42
    fused_backward: bool = False
    remedy_for_nan: str = "lower optimizer.learning_rate, or use model.mixed_precision bf16 or no"
    slowest_step_seconds: float = SLOWEST_STEP_SECONDS
