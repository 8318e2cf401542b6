"""Learns two tasks at once, of which some samples lack one, and how much each of them is to count.

The loss is a mean over samples, where a missing value is no error; a mean over the values that are there would depend
on how ranks divide the batch. As a metric, that mean is a pair: (sum, count). Both are the same on any number of ranks.
The weights of the tasks are trained, so they are part of the model (Kendall et al. 2018).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from modules.trainer import TrainingEngine, launch_distributed_training


def make_sample(number):
    inputs, has_size = torch.randn(6), number % 3 > 0
    size = inputs[1:].sum() if has_size else torch.zeros(())
    return {"inputs": inputs, "kind": int(inputs[0] > 0), "size": size, "has_size": has_size}


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 32), nn.ReLU())
        self.kind, self.size, self.log_variances = nn.Linear(32, 2), nn.Linear(32, 1), nn.Parameter(torch.zeros(2))

    def forward(self, inputs):
        features = self.trunk(inputs)
        return {"kind": self.kind(features), "size": self.size(features)[:, 0], "log_variances": self.log_variances}


def step(model, batch):
    found = model(batch["inputs"])
    errors = (found["size"] - batch["size"]).square() * batch["has_size"]
    losses = torch.stack([F.cross_entropy(found["kind"], batch["kind"]), errors.mean()])
    loss = (losses * (-found["log_variances"]).exp() + found["log_variances"]).sum()
    return loss, len(errors), {"kind_loss": losses[0], "size_error": (errors.sum(), batch["has_size"].sum())}


def train(rank, world_size):
    torch.manual_seed(0)
    engine = TrainingEngine(TwoHeads(), distributed=world_size > 1, output_dir="workspace/gallery/multi_task")
    optimizer = torch.optim.Adam(engine.model.parameters(), lr=0.01)
    loader = DataLoader(list(map(make_sample, range(130))), batch_size=16 // world_size, shuffle=True)
    engine.train(loader, optimizer=optimizer, step_fn=step, num_epochs=4, save_every_steps=4, resume=True)


if __name__ == "__main__":
    launch_distributed_training(train, world_size=int(sys.argv[1]) if sys.argv[1:] else 1)
