"""Tells rising from falling sequences of several lengths by an LSTM, which gets them packed.

A packed batch counts as many samples as it has sequences, so that the curve is the same on any number of ranks.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, Dataset

from modules.trainer import TrainingEngine, launch_distributed_training


class Sequences(Dataset):
    def __len__(self):
        return 150

    def __getitem__(self, index):
        length, rises = 5 + index % 16, index // 16 % 2
        line = torch.linspace(-1, 1, length) if rises else torch.linspace(1, -1, length)
        return line[:, None] + torch.randn(length, 1), rises


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, packed):
        _, (hidden, _) = self.lstm(packed)
        return self.head(hidden[-1])


def pack(samples):
    sequences, targets = zip(*samples, strict=True)
    return pack_sequence(sequences, enforce_sorted=False), torch.tensor(targets)


def train(rank, world_size):
    torch.manual_seed(0)
    engine = TrainingEngine(Classifier(), distributed=world_size > 1, output_dir="workspace/gallery/rnn")
    engine.train(
        DataLoader(Sequences(), batch_size=16 // world_size, shuffle=True, collate_fn=pack),
        optimizer=torch.optim.Adam(engine.model.parameters(), lr=0.01),
        criterion=nn.CrossEntropyLoss(),
        num_epochs=4,
        save_every_steps=3,
        resume=True,
    )


if __name__ == "__main__":
    launch_distributed_training(train, world_size=int(sys.argv[1]) if sys.argv[1:] else 1)
