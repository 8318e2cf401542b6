"""Trains a generator and a discriminator, each with an optimizer of its own (GAN).

`engine.backward` makes one step of the optimizer that it names. The noise is part of the data: what a step draws itself
would depend on the rank. So the curve is the same on any number of ranks.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from modules.trainer import TrainingEngine, launch_distributed_training


class Circle(Dataset):
    def __len__(self):
        return 130

    def __getitem__(self, index):
        angle = 6.28 * torch.rand(1)
        return torch.cat([angle.sin(), angle.cos()]), torch.randn(4)  # a real sample, and the noise for one


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))


def loss_of(scores, is_real):
    return nn.functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, is_real))


def train(rank, world_size):
    torch.manual_seed(0)
    model = GAN()
    engine = TrainingEngine(model, distributed=world_size > 1, output_dir="workspace/gallery/gan")
    parts = {"discriminator": model.discriminator, "generator": model.generator}
    optimizers = {name: torch.optim.Adam(part.parameters(), 0.005, (0.5, 0.999)) for name, part in parts.items()}

    def step(model, batch):
        real, noise = batch
        fake = model.generator(noise)
        loss = loss_of(model.discriminator(real), 1.0) + loss_of(model.discriminator(fake.detach()), 0.0)
        engine.backward(loss, "discriminator")
        generator_loss = loss_of(model.discriminator(fake), 1.0)
        engine.backward(generator_loss, "generator")
        return generator_loss, len(real), {"discriminator_loss": loss}

    loader = DataLoader(Circle(), batch_size=16 // world_size, shuffle=True)
    engine.train(loader, optimizer=optimizers, step_fn=step, num_epochs=4, save_every_steps=4, resume=True)


if __name__ == "__main__":
    launch_distributed_training(train, world_size=int(sys.argv[1]) if sys.argv[1:] else 1)
