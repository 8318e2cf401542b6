"""Trains a student on few labels and on the answers of its own moving average (mean teacher, Tarvainen & Valpola 2017).

The teacher follows right after the step, which `engine.backward` makes; it is part of the model, so that checkpoints
have it. Both are the same on any number of ranks. (For an average that only validation uses, there is `use_ema`.)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from copy import deepcopy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from modules.trainer import TrainingEngine, launch_distributed_training


class TwoViews(Dataset):
    def __len__(self):
        return 150

    def __getitem__(self, index):
        first, second = 3 * (index % 2) + torch.randn(2) + 0.5 * torch.randn(2, 2)
        return first, second, index % 2 if index % 8 < 2 else -1  # one in four has a label


class MeanTeacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
        self.teacher = deepcopy(self.student).requires_grad_(False)


def train(rank, world_size):
    torch.manual_seed(0)
    loader, model = DataLoader(TwoViews(), batch_size=16 // world_size, shuffle=True), MeanTeacher()
    engine = TrainingEngine(model, distributed=world_size > 1, output_dir="workspace/gallery/ema_teacher")
    optimizer = torch.optim.SGD(model.student.parameters(), lr=0.05, momentum=0.9)

    def step(model, batch):
        first, second, target = batch
        answer, wanted = model.student(first), model.teacher(second)
        labeled = F.cross_entropy(answer, target, ignore_index=-1, reduction="sum") / len(target)
        loss = labeled + F.mse_loss(answer.softmax(1), wanted.softmax(1))
        engine.backward(loss, "student")
        for average, value in zip(model.teacher.parameters(), model.student.state_dict().values(), strict=True):
            average.lerp_(value, 0.05)
        return loss

    engine.train(loader, optimizer={"student": optimizer}, step_fn=step, num_epochs=5, save_every_steps=4, resume=True)


if __name__ == "__main__":
    launch_distributed_training(train, world_size=int(sys.argv[1]) if sys.argv[1:] else 1)
