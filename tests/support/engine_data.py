"""Small models and data for the tests of TrainingEngine."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info

from modules.engine.TrainingEngine import TrainingEngine


def small_net(norm: bool = True) -> nn.Module:
    """Samples of four float64 numbers in two classes."""
    torch.manual_seed(1)
    middle = nn.BatchNorm1d(16) if norm else nn.Identity()
    return nn.Sequential(nn.Linear(4, 16), middle, nn.ReLU(), nn.Linear(16, 2)).double()


def points(count: int = 103) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


class Augmented(Dataset):
    """Points with noise from each of the random generators that datasets use."""

    def __init__(self, count: int = 103):
        self.points = points(count)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, target = self.points[index]
        noise = torch.rand(4) + torch.from_numpy(np.random.rand(4)).float() + random.random()
        return inputs + 0.1 * noise.double(), target


class Stream(IterableDataset):
    """The same points as an iterable dataset, split over workers."""

    def __init__(self, count: int = 103):
        self.points = Augmented(count)

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return (self.points[index] for index in range(first, len(self.points), step))


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(1) == target).double()


def adamw(engine: TrainingEngine, lr: float = 1e-2) -> torch.optim.Optimizer:
    return torch.optim.AdamW(engine.model.parameters(), lr=lr)
