"""Begins with the easy samples, and adds harder ones in each epoch.

The engine calls `set_epoch` of a sampler that has it, and seeds what it draws. Later epochs have more steps, so the
learning rate changes with the epochs. The curve is the same on any number of ranks.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

from modules.trainer import TrainingEngine, launch_distributed_training


class EasyFirst(Sampler):
    def __init__(self, difficulty, epochs):
        self.order, self.epochs = difficulty.argsort(), epochs

    def set_epoch(self, epoch):
        self.count = len(self.order) * min(epoch + 1, self.epochs) // self.epochs

    def __iter__(self):
        return iter(self.order[torch.randperm(self.count)].tolist())


def make_data(count=200):
    inputs = torch.randn(count, 4)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def make_model():
    return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))


def train(rank, world_size):
    torch.manual_seed(0)
    data = make_data()
    engine = TrainingEngine(make_model(), distributed=world_size > 1, output_dir="workspace/gallery/curriculum")
    difficulty = -data.tensors[0].sum(1).abs()  # the nearer to the border, the harder
    optimizer = torch.optim.SGD(engine.model.parameters(), lr=0.1, momentum=0.9)
    engine.train(
        DataLoader(data, batch_size=16 // world_size, sampler=EasyFirst(difficulty, epochs=4)),
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8),
        criterion=nn.CrossEntropyLoss(),
        num_epochs=5,
        save_every_steps=4,
        resume=True,
    )


if __name__ == "__main__":
    launch_distributed_training(train, world_size=int(sys.argv[1]) if sys.argv[1:] else 1)
