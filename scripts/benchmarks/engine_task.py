"""What every program of the engine comparison trains, on random data: a small convolutional classifier, or a tiny one.

A step of the tiny one takes about a millisecond, most of it what any loop does besides computing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import TensorDataset

from scripts.benchmarks.worker import Turns, WorkerArguments, num_ranks

LEARNING_RATE = 1e-3
CLIP = 1.0


@dataclass(frozen=True)
class Task:
    """shape: of a sample. batch: of a rank. epoch: most steps of one."""

    shape: tuple[int, ...]
    batch: int
    epoch: int


TASKS = {"usual": Task((3, 32, 32), 64, 50), "tiny": Task((64,), 16, 500)}


def make_model(arguments: WorkerArguments) -> nn.Module:
    """A plain stack of convolutions with BatchNorm, or two layers; both for ten classes."""
    torch.manual_seed(0)
    if arguments.task == "tiny":
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, 10))


def make_data(arguments: WorkerArguments, world_size: int) -> TensorDataset:
    """As many samples as one epoch of all the steps needs."""
    generator = torch.Generator().manual_seed(1)
    count = _steps_of_an_epoch(arguments) * batch_size(arguments) * world_size
    inputs = torch.randn(count, *TASKS[arguments.task].shape, generator=generator)
    return TensorDataset(inputs, torch.arange(count) % 10)


def batch_size(arguments: WorkerArguments) -> int:
    """That of a rank."""
    return arguments.batch_size or TASKS[arguments.task].batch


def run(train: Callable[[WorkerArguments, Turns], None]) -> None:
    """Runs `train` as a program under comparison, which begins with its first turn."""
    arguments = WorkerArguments.parse()
    turns = Turns(arguments.steps, arguments.total_steps, device_type(), num_ranks())
    turns.wait()
    train(arguments, turns)


def device_type() -> str:
    """What every program of the comparison trains on."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def epochs(arguments: WorkerArguments) -> int:
    """Enough for all the steps."""
    return -(-arguments.total_steps // _steps_of_an_epoch(arguments))


def _steps_of_an_epoch(arguments: WorkerArguments) -> int:
    return min(arguments.total_steps, TASKS[arguments.task].epoch)
