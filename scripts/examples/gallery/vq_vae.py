"""Trains an autoencoder with a codebook, which follows moving averages instead of gradients (VQ-VAE).

By itself, a buffer that a module changes takes the value of rank 0, which has a part of the batch. The sums behind the
codebook are those of all ranks here, so that the curve is the same on any number of ranks.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from modules.trainer import TrainingEngine, launch_distributed_training


class VQVAE(nn.Module):
    def __init__(self, codes=16, dim=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, dim))
        self.decoder = nn.Sequential(nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, 8))
        self.register_buffer("codebook", torch.randn(codes, dim))
        self.register_buffer("averages", torch.cat([torch.ones(codes, 1), self.codebook], dim=1))  # counts, sums

    def forward(self, x):
        z = self.encoder(x)
        chosen = F.one_hot(torch.cdist(z.detach(), self.codebook).argmin(1), len(self.codebook)).to(z.dtype)
        quantized = chosen @ self.codebook
        if self.training:
            self.follow(chosen, z.detach())
        decoded = self.decoder(z + (quantized - z).detach())
        return F.mse_loss(decoded, x) + 0.25 * F.mse_loss(z, quantized)

    def follow(self, chosen, z):
        sums = torch.cat([chosen.sum(0)[:, None], chosen.T @ z], dim=1)
        if dist.is_initialized():
            dist.all_reduce(sums)
        self.averages.lerp_(sums, 0.05)
        self.codebook.copy_(self.averages[:, 1:] / self.averages[:, :1].clamp(min=1e-3))


def step(model, batch):
    return model(*batch)


def train(rank, world_size):
    torch.manual_seed(0)
    points = torch.randn(4, 8)[torch.arange(192) % 4] + 0.1 * torch.randn(192, 8)
    engine = TrainingEngine(VQVAE(), distributed=world_size > 1, output_dir="workspace/gallery/vq_vae")
    loader = DataLoader(TensorDataset(points), batch_size=32 // world_size, shuffle=True)
    optimizer = torch.optim.Adam(engine.model.parameters(), lr=0.005)
    engine.train(loader, optimizer=optimizer, step_fn=step, num_epochs=6, save_every_steps=4, resume=True)


if __name__ == "__main__":
    launch_distributed_training(train, world_size=int(sys.argv[1]) if sys.argv[1:] else 1)
