"""Aligns two views of the same thing by a contrastive loss, whose negatives are the pairs of all ranks (CLIP).

Exact on any number of ranks, as gradients flow back through the gathering: with the plain `dist.all_gather`, a rank's
negatives would get no gradient. Ranks must have equally many pairs, hence drop_last: the last pairs are left out.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from modules.trainer import TrainingEngine, launch_distributed_training


def encoder(inputs):
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, 8))


def of_all_ranks(features):
    return torch.cat(all_gather(features)) if dist.is_initialized() else features


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text, self.log_scale = encoder(12), encoder(6), nn.Parameter(torch.tensor(1.0))

    def forward(self, images, texts):
        image, text = F.normalize(self.image(images), dim=1), F.normalize(self.text(texts), dim=1)
        own = torch.arange(len(image)) + len(image) * (dist.get_rank() if dist.is_initialized() else 0)
        own, scale = own.to(image.device), self.log_scale.exp()
        by_image = F.cross_entropy(scale * image @ of_all_ranks(text).T, own)
        return (by_image + F.cross_entropy(scale * text @ of_all_ranks(image).T, own)) / 2


def step(model, batch):
    return model(*batch)


def train(rank, world_size):
    torch.manual_seed(0)
    texts = torch.randn(200, 6)
    images = torch.tanh(texts @ torch.randn(6, 12)) + 0.1 * torch.randn(200, 12)
    engine = TrainingEngine(TwoTowers(), distributed=world_size > 1, output_dir="workspace/gallery/contrastive")
    loader = DataLoader(TensorDataset(images, texts), batch_size=32 // world_size, shuffle=True, drop_last=True)
    optimizer = torch.optim.AdamW(engine.model.parameters(), lr=0.01)
    engine.train(loader, optimizer=optimizer, step_fn=step, num_epochs=5, save_every_steps=4, resume=True)


if __name__ == "__main__":
    launch_distributed_training(train, world_size=int(sys.argv[1]) if sys.argv[1:] else 1)
