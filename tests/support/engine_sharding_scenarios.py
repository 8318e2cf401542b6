"""Trainings by TrainingEngine with each strategy that the tests of sharding run on every rank; see RankPool."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from modules.config.errors import UserError
from modules.distributed.shards import local_part
from modules.engine.TrainingEngine import TrainingEngine
from modules.trainer.TrainingLoop import TrainingLoop

if TYPE_CHECKING:
    from tests.support.RankPool import MakeRuntime

WORDS, LENGTH, WIDTH = 17, 6, 16


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.feed_forward = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        own = self.norm(x)
        x = x + self.attention(own, own, own, need_weights=False)[0]
        return x + self.feed_forward(x)


class Transformer(nn.Module):
    """Predicts the word after LENGTH words; its last layer has the weights of its first. Positions are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH), requires_grad=False)
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.blocks(self.words(words) + self.positions).mean(1))


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.inner(x))


def resnet() -> nn.Module:
    stem = nn.Sequential(nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU())
    return nn.Sequential(stem, Residual(6), Residual(6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, WORDS))


MODELS: dict[str, tuple[Callable[[], nn.Module], list[type[nn.Module]]]] = {
    "transformer": (Transformer, [Block]),
    "resnet": (resnet, [Residual]),
}


def samples(model: str, count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(WORDS, (count, LENGTH), generator=generator)
    images = torch.randn(count, 3, 8, 8, generator=generator, dtype=torch.float64)
    return TensorDataset(words if model == "transformer" else images, words[:, 0])


def make_engine(model: str, folder: str, device: str = "cpu", **options: Any) -> TrainingEngine:
    """device: on which the model is built."""
    make, blocks = MODELS[model]
    torch.manual_seed(1)
    options = {"shard_blocks": blocks, "device": "cpu", **options}
    if "amp_dtype" in options:
        options["amp_dtype"] = getattr(torch, options["amp_dtype"])
    with torch.device(device):
        built = make().double()
    return TrainingEngine(built, distributed=dist.is_initialized(), output_dir=folder, **options)


def optimizer_of(engine: TrainingEngine, kind: str = "AdamW") -> torch.optim.Optimizer:
    params = [param for param in engine.model.parameters() if param.requires_grad]
    groups = [{"params": params[::2]}, {"params": params[1::2], "lr": 2e-3}]
    if kind == "SGD":
        return torch.optim.SGD(groups, lr=1e-2, momentum=0.9)
    return torch.optim.AdamW(groups, lr=1e-2)


def train(
    make_runtime: MakeRuntime,
    model: str,
    folder: str,
    batch_size: int,
    engine: dict[str, Any],
    epochs: int = 2,
    optimizer: str = "AdamW",
    **options: Any,
) -> dict[str, Any]:
    """The curve, predictions, and what this rank holds: name -> (bytes in its storages, bytes of the full tensors)."""
    trained = make_engine(model, folder, **engine)
    loader = DataLoader(samples(model, 26), batch_size=batch_size, shuffle=True)
    held: dict[str, list[int]] = {}
    norms: list[float] = []
    apply_gradients = TrainingLoop._apply_gradients

    def measuring(loop: TrainingLoop, optimizer: Any, gradients: list[Tensor], *figures: Tensor) -> None:
        held["gradients"] = counted(gradients)
        norms.append(float(figures[1]))
        apply_gradients(loop, optimizer, gradients, *figures)

    chosen = optimizer_of(trained, optimizer)
    with patch.object(TrainingLoop, "_apply_gradients", measuring):
        history = trained.train(
            loader,
            DataLoader(samples(model, 7), batch_size=2),
            optimizer=chosen,
            criterion=nn.CrossEntropyLoss(),
            scheduler=torch.optim.lr_scheduler.StepLR(chosen, 1, 0.5),
            num_epochs=epochs,
            metrics={"accuracy": lambda output, target: (output.argmax(1) == target).double()},
            clip_grad_norm=0.05,
            **options,
        )
    held["parameters"] = counted(trained.model.parameters())
    moments = [[value for value in state.values() if value.dim()] for state in chosen.state.values()]
    full = sum(param.nbytes for param in trained.model.parameters() if param.requires_grad)
    held["optimizer state"] = [counted(one for state in moments for one in state)[0], len(moments[0]) * full]
    predicted = trained.predict(DataLoader(samples(model, 7), batch_size=2))
    trained.runtime.close()
    return {
        "losses": history["train_loss"],
        "validation": [*history["val_loss"], *history["accuracy"]],
        "norms": norms,
        "predicted": predicted.flatten().tolist(),
        "held": held,
        "checkpoint": str(trained.last_checkpoint),
        "top": [str(path) for path in trained.top_checkpoints],
    }


def counted(tensors: Iterable[Tensor]) -> list[int]:
    given = list(tensors)
    storages = {one.data_ptr(): one.nbytes() for one in (local_part(tensor).untyped_storage() for tensor in given)}
    return [sum(storages.values()), sum(one.nbytes for one in given)]


def refusal(
    make_runtime: MakeRuntime,
    folder: str,
    engine: dict[str, Any],
    early: bool = False,
    several: bool = False,
    around: bool = False,
) -> str:
    """What is said of the arguments, of an optimizer that is made before the engine, or of several.

    around: of a step that goes around `forward`.
    """

    def step(net: Any, batch: Tensor) -> Tensor:
        return functional.linear(batch, net[0].weight).sum() if around else net(batch).sum()

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    try:
        made = TrainingEngine(model, distributed=True, output_dir=Path(folder), **engine)
        later = torch.optim.AdamW if several or around else torch.optim.Adafactor
        own = optimizer if early else later(model.parameters())
        chosen = {"first": own} if several else own
        made.train([torch.zeros(2, 4)], optimizer=chosen, step_fn=step, num_epochs=1)
    except UserError as error:
        return str(error)
    return ""
