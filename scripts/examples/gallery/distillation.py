"""Trains a large teacher, and then a small student on the teacher's answers (Hinton et al. 2015).

Each training has a folder of its own, so that a second start goes on with the one that was interrupted. The teacher is
no part of the student's model: it is only moved to the device. The curves are the same on any number of ranks.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from modules.trainer import TrainingEngine, launch_distributed_training

TEMPERATURE = 2.0


def make_model(width):
    return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 3))


def make_data(count=150):
    inputs = torch.randn(count, 2)
    return TensorDataset(inputs, (inputs.norm(dim=1) * 2).long().clamp(max=2))


def distillation_loss(output, teacher_output, target):
    soft, wanted = F.log_softmax(output / TEMPERATURE, 1), F.log_softmax(teacher_output / TEMPERATURE, 1)
    divergence = F.kl_div(soft, wanted, reduction="batchmean", log_target=True)
    return 0.5 * F.cross_entropy(output, target) + 0.5 * TEMPERATURE**2 * divergence


def train(rank, world_size):
    torch.manual_seed(0)
    data, teacher, student = make_data(), make_model(64), make_model(8)
    loader = DataLoader(data, batch_size=16 // world_size, shuffle=True)
    ranks = {"distributed": world_size > 1, "output_dir": "workspace/gallery/distillation"}
    engine = TrainingEngine(teacher, experiment_name="teacher", **ranks)
    optimizer = torch.optim.Adam(teacher.parameters(), lr=0.01)
    engine.train(loader, optimizer=optimizer, criterion=nn.CrossEntropyLoss(), num_epochs=4, resume=True)

    teacher.eval().requires_grad_(False)

    def step(model, batch):
        inputs, target = batch
        return distillation_loss(model(inputs), teacher(inputs), target)

    engine = TrainingEngine(student, experiment_name="student", **ranks)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
    engine.train(loader, optimizer=optimizer, step_fn=step, num_epochs=4, save_every_steps=4, resume=True)


if __name__ == "__main__":
    launch_distributed_training(train, world_size=int(sys.argv[1]) if sys.argv[1:] else 1)
