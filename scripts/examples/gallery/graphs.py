"""Classifies graphs: a batch is one large graph, with the number of the graph that each node is of.

A step counts graphs. BatchNorm normalizes over the nodes of all ranks: the curve is the same on any number of ranks.
"""

import sys
from collections import namedtuple
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from torch import nn
from torch.utils.data import DataLoader

from modules.trainer import TrainingEngine, launch_distributed_training

Graphs = namedtuple("Graphs", "nodes edges graph target")


def ring_or_star(number):
    count, is_ring = 4 + number % 7, number % 2
    ends = torch.arange(count)
    return torch.randn(count, 2) + 1, torch.stack([ends, (ends + 1) % count if is_ring else 0 * ends]), is_ring


def collate(samples):
    nodes, edges, targets = zip(*samples, strict=True)
    counts = torch.tensor([len(part) for part in nodes])
    graph, first = torch.arange(len(counts)).repeat_interleave(counts), counts.cumsum(0) - counts
    shifted = [part + offset for part, offset in zip(edges, first, strict=True)]
    return Graphs(torch.cat(nodes), torch.cat(shifted, dim=1), graph, torch.tensor(targets))


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(2, 32, bias=False), nn.BatchNorm1d(32), nn.Linear(32, 2)

    def forward(self, batch):
        start, end = batch.edges
        x = batch.nodes.index_add(0, end, batch.nodes[start])  # each node and its neighbors
        x = torch.relu(self.norm(self.first(x)))
        return self.last(x.new_zeros(len(batch.target), 32).index_add(0, batch.graph, x))


def step(model, batch):
    return nn.functional.cross_entropy(model(batch), batch.target)


def train(rank, world_size):
    torch.manual_seed(0)
    engine = TrainingEngine(GraphNet(), distributed=world_size > 1, output_dir="workspace/gallery/graphs")
    graphs, optimizer = list(map(ring_or_star, range(90))), torch.optim.Adam(engine.model.parameters(), lr=0.01)
    loader = DataLoader(graphs, batch_size=16 // world_size, shuffle=True, collate_fn=collate)
    engine.train(loader, optimizer=optimizer, step_fn=step, num_epochs=5, save_every_steps=4, resume=True)


if __name__ == "__main__":
    launch_distributed_training(train, world_size=int(sys.argv[1]) if sys.argv[1:] else 1)
