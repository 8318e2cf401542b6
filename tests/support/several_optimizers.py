"""A model with two optimizers, and its training on the ranks of the pool."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from modules.config.errors import UserError
from modules.trainer import TrainingEngine
from tests.support.engine_data import points

if TYPE_CHECKING:
    from tests.support.RankPool import MakeRuntime


class Pair(nn.Module):
    """Two parts, of which the second judges what the first makes of samples of `points`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).double()
        self.second = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).double()

    def first_loss(self, inputs: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(self.first(inputs), target)

    def second_loss(self, inputs: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(self.second(self.first(inputs)), target)


def make_optimizers(model: Pair, fused: bool = False) -> dict[str, torch.optim.Optimizer]:
    return {
        "first": torch.optim.AdamW(model.first.parameters(), lr=0.01, fused=fused),
        "second": torch.optim.SGD(model.second.parameters(), lr=0.1, momentum=0.9),
    }


def train_pair(
    make_runtime: MakeRuntime | None,
    folder: str,
    world_size: int,
    epochs: int = 2,
    resume: bool = False,
    **options: Any,
) -> list[float]:
    """The weights after the epochs, whose last step has a single sample: with two ranks, none for the first.

    options: of the engine.
    """
    engine = TrainingEngine(Pair(), distributed=world_size > 1, output_dir=folder, **options)

    def step(model: Any, batch: Any) -> Tensor:
        for _ in range(2):  # two steps of one optimizer, and one of the other
            engine.backward(model.first_loss(*batch), "first")
        loss = model.second_loss(*batch)
        engine.backward(loss, "second")
        return loss

    loader = DataLoader(points(49), batch_size=16 // world_size, shuffle=True)
    optimizers = make_optimizers(engine.model)
    engine.train(
        loader,
        optimizer=optimizers,
        step_fn=step,
        clip_grad_norm=1.0,
        num_epochs=epochs,
        resume=resume,
        save_best=False,
    )
    return torch.cat([param.detach().flatten() for param in engine.model.parameters()]).tolist()


def train_unused(make_runtime: MakeRuntime, folder: str, announced: bool) -> tuple[str, list[float]]:
    """What is said, and the weights, where steps leave parameters unused: announced on rank 0, else on both ranks."""
    engine = TrainingEngine(Pair(), distributed=True, output_dir=folder)
    leaves_unused = not announced or os.environ["RANK"] == "0"

    def step(model: Any, batch: Any) -> Tensor:
        loss = model.first[2].weight.square().sum() if leaves_unused else model.first_loss(*batch)
        engine.backward(loss, "first")
        return loss

    optimizers, refused = make_optimizers(engine.model), ""
    loader = DataLoader(points(40), batch_size=8)
    try:
        engine.train(loader, optimizer=optimizers, step_fn=step, num_epochs=1, unused_parameters=announced)
    except UserError as error:
        refused = str(error)
    return refused, torch.cat([param.detach().flatten() for param in engine.model.first.parameters()]).tolist()
