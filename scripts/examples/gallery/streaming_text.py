"""Trains a language model on text that is streamed, cut into blocks and shuffled in a buffer.

Every rank reads the whole stream, and the engine keeps the rank's part of each batch. The buffer draws from Python's
`random`, which the engine seeds for each epoch: the curve is the same on any number of ranks, and after a resume.
"""

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from modules.trainer import TrainingEngine, launch_distributed_training

BLOCK, ALPHABET = 24, " abcdefghijklmnopqrstuvwxyz."
LINES = [f"the {'very ' * (number % 5)}old cat saw {'many ' * (number % 3)}birds. " for number in range(90)]


class Blocks(IterableDataset):
    def __iter__(self):
        buffer, pending = [], ""
        for line in LINES:
            pending += line
            while len(pending) > BLOCK:
                buffer.append(torch.tensor([ALPHABET.index(letter) for letter in pending[: BLOCK + 1]]))
                pending = pending[BLOCK:]
                if len(buffer) > 32:
                    yield buffer.pop(random.randrange(len(buffer)))
        yield from random.sample(buffer, len(buffer))


class Transformer(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.letters, self.positions = nn.Embedding(len(ALPHABET), width), nn.Embedding(BLOCK, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, len(ALPHABET))

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(BLOCK, device=tokens.device)
        return self.head(self.layer(self.letters(tokens) + self.positions.weight, mask, is_causal=True))


def step(model, batch):
    return nn.functional.cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:])


def train(rank, world_size):
    torch.manual_seed(0)
    engine = TrainingEngine(Transformer(), distributed=world_size > 1, output_dir="workspace/gallery/streaming_text")
    loader, optimizer = DataLoader(Blocks(), 16 // world_size), torch.optim.AdamW(engine.model.parameters(), lr=0.005)
    engine.train(loader, optimizer=optimizer, step_fn=step, num_epochs=3, save_every_steps=5, resume=True)


if __name__ == "__main__":
    launch_distributed_training(train, world_size=int(sys.argv[1]) if sys.argv[1:] else 1)
