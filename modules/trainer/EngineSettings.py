"""What the model-agnostic loop is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from modules.config.EmaConfig import EmaConfig
from modules.config.OptimizerConfig import OptimizerConfig
from modules.config.ScheduleConfig import ScheduleConfig


@dataclass(frozen=True)
class EngineSettings:
    """learning_rate_factor: what the batch-size rule multiplies every group's rate by."""

    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    ema: EmaConfig = field(default_factory=EmaConfig)
    mixed_precision: Literal["no", "bf16", "fp16"] = "no"
    seed: int = 42
    learning_rate_factor: float = 1.0
