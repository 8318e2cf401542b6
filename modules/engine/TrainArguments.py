"""What a program passes to one call of `TrainingEngine.train`, where each argument is explained."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from modules.config.errors import UserError
from modules.engine.Accumulation import Accumulation
from modules.engine.arguments import (
    check_accumulation,
    check_clip_grad_norm,
    check_count,
    check_criterion,
    check_length,
    check_loader,
    check_plateau,
    check_resume,
    check_validation,
)
from modules.engine.ExtraState import Stateful, check_extra_state
from modules.engine.metrics import Metric, is_torchmetric
from modules.engine.Monitor import Mode, Monitor
from modules.engine.optimizer_arguments import check_optimizers, check_steps_alone, check_steps_by_hand
from modules.engine.Task import Criterion, StepFn, Task


@dataclass(frozen=True)
class TrainArguments:
    """All but the callbacks."""

    train_loader: Iterable[Any]
    val_loader: Iterable[Any] | None
    optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer]
    criterion: Criterion | None
    scheduler: LRScheduler | Mapping[str, LRScheduler] | None
    num_epochs: int | None
    max_steps: int | None
    save_best: bool = True
    save_last: bool = True
    gradient_accumulation_steps: int | Mapping[int, int] = 1
    clip_grad_norm: float | None = None
    resume: bool | str | os.PathLike | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    step_fn: StepFn | None = None
    monitor: str | None = None
    mode: Mode | None = None
    scheduler_interval: Literal["epoch", "step"] = "epoch"
    save_every_steps: int | None = None
    save_top_k: int | None = None
    validate_every_steps: int | None = None
    extra_state: Mapping[str, Stateful] = field(default_factory=dict)
    unused_parameters: bool = False

    def check(self, model: nn.Module, in_ram: bool) -> None:
        """Raises UserError for values that can't work with `model`, or with the optimizer's state in system memory."""
        check_loader("train_loader", self.train_loader)
        if self.val_loader is not None:
            check_loader("val_loader", self.val_loader)
        check_optimizers(self.optimizer, self.scheduler, self.scheduler_interval, model)
        if in_ram:
            check_steps_alone(self.optimizer)
        check_length(self.num_epochs, self.max_steps)
        check_accumulation(self.gradient_accumulation_steps)
        if isinstance(self.optimizer, Mapping):
            check_steps_by_hand(self.step_fn is not None, self.gradient_accumulation_steps)
        if self.save_every_steps:
            check_count("save_every_steps", self.save_every_steps)
        if self.save_top_k is not None:
            check_count("save_top_k", self.save_top_k)
        check_validation(self.validate_every_steps, self.val_loader)
        check_clip_grad_norm(self.clip_grad_norm)
        check_resume(self.resume)
        check_extra_state(self.extra_state)

    def is_over(self, epoch: int, step: int) -> bool:
        """Whether so many epochs and optimizer steps are all."""
        return (self.num_epochs is not None and epoch >= self.num_epochs) or self.has_all_steps(step)

    def has_all_steps(self, step: int) -> bool:
        return self.max_steps is not None and step >= self.max_steps

    def validates_after(self, step: int) -> bool:
        """Whether a validation by `validate_every_steps` is due after that step."""
        return self.validate_every_steps is not None and step % self.validate_every_steps == 0

    def total_steps(self, batches: int | None) -> int:
        """The optimizer steps if a rank has so many batches per epoch; 0 if unknown."""
        if self.num_epochs is None or batches is None:
            return self.max_steps or 0
        steps = self.accumulation.total_steps(batches, self.num_epochs)
        return min(steps, self.max_steps or steps)

    @property
    def accumulation(self) -> Accumulation:
        return Accumulation.of(self.gradient_accumulation_steps)

    def task(self, device: torch.device) -> Task:
        """What is computed for a batch, with a criterion that is on `device`."""
        task = Task(check_criterion(self.criterion, device), self.step_fn, self.metrics)
        if self.val_loader is None and any(map(is_torchmetric, task.metrics.values())):
            raise UserError("metrics: torchmetrics objects need a val_loader; pass one.")
        return task

    def monitored(self) -> Monitor:
        """The figure that tells the best epoch."""
        has_validation = self.val_loader is not None
        name = self.monitor or ("val_loss" if has_validation else "train_loss")
        schedulers = list(self.scheduler.values()) if isinstance(self.scheduler, Mapping) else [self.scheduler]
        modes = (mode for scheduler in schedulers if (mode := getattr(scheduler, "mode", None)))
        monitor = Monitor(name, self.mode, otherwise=next(modes, None))
        for scheduler in schedulers:
            check_plateau(scheduler, monitor)
        if self.step_fn is None:  # the names of its metrics are only known when it returns them
            monitor.check(["train_loss", "lr", *(["val_loss"] if has_validation else []), *self.metrics])
        return monitor
