"""Trains on rare and frequent classes equally often, by a sampler with weights.

The sampler draws from the engine's seed, the same on every rank, and the ranks share out what it has drawn: the curve
is the same on any number of ranks. The accuracy counts each sample of the validation once.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from modules.trainer import TrainingEngine, launch_distributed_training


def make_data(count):
    targets = (torch.arange(count) % 10 == 0).long()  # one in ten
    return TensorDataset(torch.randn(count, 6) + targets[:, None], targets)


def make_model():
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))


def make_sampler(targets):
    weights = 1.0 / targets.bincount()[targets]
    return WeightedRandomSampler(weights, num_samples=150)


def train(rank, world_size):
    torch.manual_seed(0)
    train_set, val_set = make_data(400), make_data(101)
    engine = TrainingEngine(make_model(), distributed=world_size > 1, output_dir="workspace/gallery/weighted_sampler")
    optimizer = torch.optim.SGD(engine.model.parameters(), lr=0.1, momentum=0.9)
    engine.train(
        DataLoader(train_set, batch_size=16 // world_size, sampler=make_sampler(train_set.tensors[1])),
        DataLoader(val_set, batch_size=32),
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5),
        criterion=nn.CrossEntropyLoss(),
        metrics={"accuracy": lambda output, target: (output.argmax(1) == target).float()},
        num_epochs=5,
        save_every_steps=4,
        resume=True,
    )


if __name__ == "__main__":
    launch_distributed_training(train, world_size=int(sys.argv[1]) if sys.argv[1:] else 1)
