"""A training loop over a small module, with the configured optimizer and schedule."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from modules.config.OptimizerConfig import OptimizerConfig
from modules.config.ScheduleConfig import ScheduleConfig
from modules.distributed.Runtime import Runtime
from modules.session.TrainCallbacks import TrainCallbacks
from modules.trainer.LoopOptimizer import ScheduledOptimizer
from modules.trainer.LoopSettings import LoopSettings
from modules.trainer.optimizers import ParamGroup
from modules.trainer.TrainingLoop import StepFunction, TrainingLoop

ADAMW = OptimizerConfig(name="adamw", learning_rate=1e-2, max_grad_norm=0.5)


def make_loop(
    model: nn.Module,
    step_fn: StepFunction,
    total_steps: int = 100,
    *,
    optimizer: OptimizerConfig = ADAMW,
    schedule: ScheduleConfig | None = None,
    groups: list[ParamGroup] | None = None,
    learning_rate_factor: float = 1.0,
    runtime: Runtime | None = None,
    callbacks: TrainCallbacks | None = None,
    unused_parameters: bool = False,
    **settings: Any,
) -> TrainingLoop:
    """groups: by default a single one. settings: for LoopSettings. runtime: by default one rank on the CPU."""
    loop_runtime = runtime or Runtime(torch.device("cpu"))
    settings = LoopSettings(max_grad_norm=optimizer.max_grad_norm, **settings)

    def make_optimizer(params: dict[str, nn.Parameter]) -> ScheduledOptimizer:
        return ScheduledOptimizer(
            optimizer,
            schedule or ScheduleConfig(),
            groups or [ParamGroup("all", list(params.values()))],
            total_steps,
            settings.seed,
            learning_rate_factor,
            divided=loop_runtime.divide_updates(list(params.values())),
        )

    return TrainingLoop(
        model,
        step_fn,
        make_optimizer,
        total_steps,
        settings,
        loop_runtime,
        callbacks,
        unused_parameters=unused_parameters,
    )
