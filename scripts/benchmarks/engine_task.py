"""What every program of the engine comparison trains: a small convolutional classifier on random images."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import TensorDataset

from scripts.benchmarks.worker import Turns, WorkerArguments, num_ranks

BATCH = 64  # of a rank
LEARNING_RATE = 1e-3
CLIP = 1.0


def make_model() -> nn.Module:
    """A plain stack of convolutions with BatchNorm, for images of shape (3, 32, 32) and ten classes."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, 10))


def make_data(arguments: WorkerArguments, world_size: int) -> TensorDataset:
    """As many samples as one epoch of all the steps needs."""
    batch_size = arguments.batch_size or BATCH
    generator = torch.Generator().manual_seed(1)
    count = min(arguments.total_steps, 50) * batch_size * world_size
    return TensorDataset(torch.randn(count, 3, 32, 32, generator=generator), torch.arange(count) % 10)


def run(train: Callable[[WorkerArguments, Turns], None]) -> None:
    """Runs `train` as a program under comparison, which begins with its first turn."""
    arguments = WorkerArguments.parse()
    turns = Turns(arguments, device_type(), num_ranks())
    turns.wait()
    train(arguments, turns)


def device_type() -> str:
    """What every program of the comparison trains on."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def epochs(arguments: WorkerArguments) -> int:
    """Enough for all the steps."""
    return -(-arguments.total_steps // min(arguments.total_steps, 50))
