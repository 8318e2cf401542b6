"""Runs programs of scripts/examples/gallery: by a loop written by hand, on the pool's ranks, or until they are killed.

As a script: NAME RANKS ends the training NAME by SIGKILL in its seventh step, once there is a checkpoint.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from modules.distributed.Runtime import Runtime
from modules.engine.Accumulation import Accumulation
from modules.engine.loading import step_source
from modules.session.StepInfo import StepInfo
from modules.session.TrainCallbacks import TrainCallbacks
from modules.trainer import TrainingEngine, launch_distributed_training

if TYPE_CHECKING:
    from tests.support.RankPool import MakeRuntime

SEED = 42  # the engine's own
KILLED_AT = 7
LAST_TRAINING = {"distillation": 2}  # of those that train more than one model, the number of the last training
PATIENCE_SECONDS = 300.0


def program(name: str) -> ModuleType:
    return importlib.import_module(f"scripts.examples.gallery.{name}")


@contextlib.contextmanager
def in_double_precision(folder: str | Path) -> Iterator[None]:
    """Inside, programs compute in float64, so that rounding does not hide a difference, and write below `folder`."""
    before = Path.cwd()
    os.chdir(folder)
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        os.chdir(before)


class LoopByHand:
    """Takes the place of TrainingEngine in a program: what one would write without it, on one device."""

    def __init__(self, model: nn.Module, **options: Any):
        self.model = model
        self.device = torch.device("cpu")

    def train(
        self,
        loader: Iterable[Any],
        val_loader: Iterable[Any] | None = None,
        *,
        optimizer: Any,
        num_epochs: int,
        criterion: Any = None,
        step_fn: Any = None,
        scheduler: Any = None,
        **of_the_engine: Any,
    ) -> None:
        self.optimizer = optimizer
        source = step_source(loader, Runtime(self.device), Accumulation(), SEED)  # only for the order of the samples
        for epoch in range(num_epochs):
            self.model.train()
            for batch in (batch for step in source.steps(epoch) for batch in step.batches):
                if criterion is not None:
                    inputs, target = batch
                    loss = criterion(self.model(inputs), target)
                else:
                    result = step_fn(self.model, batch)
                    loss = result[0] if isinstance(result, tuple) else result
                if not isinstance(optimizer, Mapping):
                    self._step(loss, optimizer)
            if scheduler is not None:
                scheduler.step()

    def backward(self, loss: Tensor, name: str) -> None:
        self._step(loss, self.optimizer[name])

    def _step(self, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def weights_by_hand(name: str, folder: Path) -> dict[str, Tensor]:
    """The model's state dict after the program's last training, by LoopByHand."""
    made: list[LoopByHand] = []

    class Kept(LoopByHand):
        def __init__(self, model: nn.Module, **options: Any):
            super().__init__(model)
            made.append(self)

    with in_double_precision(folder), patch.object(program(name), "TrainingEngine", Kept):
        program(name).train(0, 1)
    return made[-1].model.state_dict()


def train_on_ranks(make_runtime: MakeRuntime, name: str, folder: str) -> None:
    """A scenario: the program's training on all ranks of the pool, or alone."""
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    with in_double_precision(folder):
        program(name).train(rank, world_size)


class Kill(TrainCallbacks):
    """Ends this process after a step, but not before there is a checkpoint."""

    def __init__(self) -> None:
        self.saved = threading.Event()

    def on_backup(self, path: str | Path, step: int) -> None:
        self.saved.set()

    def on_step(self, info: StepInfo) -> None:
        if info.step == KILLED_AT:
            self.saved.wait(PATIENCE_SECONDS)
            os.kill(os.getpid(), signal.SIGKILL)


def train_until_killed(rank: int, world_size: int, name: str) -> None:
    trainings = 0

    class Killed(TrainingEngine):
        def train(self, *arguments: Any, **options: Any) -> Any:
            nonlocal trainings
            trainings += 1
            is_last = trainings == LAST_TRAINING.get(name, 1)
            return super().train(*arguments, **options, callbacks=Kill() if rank == 0 and is_last else None)

    with patch.object(program(name), "TrainingEngine", Killed):
        program(name).train(rank, world_size)


if __name__ == "__main__":
    launch_distributed_training(train_until_killed, world_size=int(sys.argv[2]), name=sys.argv[1])
