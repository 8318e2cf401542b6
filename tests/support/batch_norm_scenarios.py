"""Scenarios that the tests of BatchNorm run on every rank; see RankPool."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from modules.config.files import load_config
from modules.distributed.errors import RanksError
from modules.session.TrainCommands import TrainCommands
from modules.trainer.GenericTrainer import GenericTrainer
from modules.trainer.Step import Step
from modules.trainer.TrainingLoop import TrainingLoop
from modules.weights.BaseModel import BaseModel
from modules.weights.safe import load_tensors, save_tensors
from tests.support.make_loop import make_loop
from tests.support.rank_scenarios import after_attaching, copied, counted, digest, squared_error
from tests.support.RankPool import MakeRuntime
from tests.support.Recorder import Recorder

Sizes = list[list[list[int]]]  # samples by step, rank and micro-batch


class NormNet(nn.Module):
    """Has every kind of BatchNorm layer. recomputes: whether to use gradient checkpointing."""

    def __init__(self, recomputes: bool = False):
        super().__init__()
        self.recomputes = recomputes
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.Tanh(),
            nn.Conv2d(4, 4, 3),
            nn.BatchNorm2d(4, affine=False, momentum=None),
        )
        self.frozen = nn.BatchNorm1d(4).requires_grad_(False)
        self.head = nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 1))

    def forward(self, images: Tensor) -> Tensor:
        if self.recomputes:
            features = checkpoint(self.features, images, use_reentrant=False)
        else:
            features = self.features(images)
        return self.head(self.frozen(features.square().mean((2, 3))))


def norm_net(**options: Any) -> NormNet:
    torch.manual_seed(1)
    net = NormNet(**options).double()
    net.frozen.running_mean.fill_(0.5)
    net.frozen.eval()
    return net


def train(
    make_runtime: MakeRuntime,
    sizes: Sizes,
    net: dict[str, Any] | None = None,
    sync: dict[str, Any] | None = None,
    save: str = "",
    load: str = "",
) -> dict[str, Any]:
    """Trains NormNet on `sizes`; one rank on micro-batches that hold those of all ranks together.

    A rank without a micro-batch gets a sample that does not count. sync: settings of DataParallelSettings.
    save, load: folder of a backup, to be written by rank 0 after the steps or to be read before them, which are then
    those that come after it.
    """
    runtime = make_runtime(**(sync or {}))
    recorder = Recorder()
    loop = make_loop(norm_net(**(net or {})), squared_error, len(sizes), callbacks=recorder, runtime=runtime)
    if load:
        load_backup(loop, Path(load))
    loop.fit(own_steps(sizes, runtime.rank, runtime.world_size)[loop.step :])
    tensors, data = loop.state()
    if save and runtime.is_main:
        for name, group in tensors.items():
            save_tensors(Path(save) / f"{name}.safetensors", copied(group))
        (Path(save) / "data.json").write_text(json.dumps(data))
    return {
        "losses": recorder.losses,
        "norms": [info.grad_norm for info in recorder.steps],
        "samples": [info.samples for info in recorder.steps],
        "state": {name: tensor.double().flatten().tolist() for name, tensor in tensors["model"].items()},
        "digest": digest(tensors["model"]),
    }


def load_backup(loop: TrainingLoop, folder: Path) -> None:
    tensors = {path.stem: load_tensors(path) for path in folder.glob("*.safetensors")}
    loop.load_state(tensors, json.loads((folder / "data.json").read_text()))


def own_steps(sizes: Sizes, rank: int, world_size: int) -> list[Step]:
    generator = torch.Generator().manual_seed(4)
    steps = []
    for of_ranks in sizes:
        batches = [[3 * torch.randn(n, 3, 7, 6, generator=generator).double() + 5 for n in own] for own in of_ranks]
        if world_size == 1:
            longest = max(map(len, batches))
            batches = [[torch.cat([own[i] for own in batches if i < len(own)]) for i in range(longest)]]
        own = batches[rank]
        steps.append(Step(own or [torch.ones(1, 3, 7, 6).double()], padding=not own))
    return steps


def call_alone(make_runtime: MakeRuntime) -> list[float]:
    """Rank 0 alone calls the model in training mode between two steps; then both continue training."""
    runtime = make_runtime()
    loop = make_loop(norm_net(), squared_error, runtime=runtime)
    batch = torch.randn(2, 3, 7, 6, generator=torch.Generator().manual_seed(runtime.rank)).double()
    loop.train_step(Step([batch]))
    if runtime.is_main:
        loop.model(batch)
    loop.train_step(Step([batch]))
    return loop.model.features[1].running_mean.tolist()


def set_up_with_unused_parts(make_runtime: MakeRuntime) -> str:
    runtime = make_runtime()
    try:
        make_loop(norm_net(), squared_error, runtime=runtime, unused_parameters=True)
    except RanksError as error:
        return str(error)
    return ""


def train_frozen(make_runtime: MakeRuntime) -> dict[str, int]:
    """The collectives of a step of a model whose BatchNorm layers are in evaluation mode."""
    loop = make_loop(norm_net().eval(), squared_error, runtime=make_runtime())
    counts = {"all_reduce": 0, "all_gather": 0, "broadcast": 0}
    with contextlib.ExitStack() as stack:
        for name in counts:
            stack.enter_context(counted(torch.distributed, name, counts))
        loop.train_step(Step([torch.ones(2, 3, 7, 6).double()]))
    return counts


def normalize_output(base: BaseModel) -> None:
    """Adds a BatchNorm layer after the U-Net."""
    unet = base.module("unet")
    unet.conv_out = nn.Sequential(unet.conv_out, nn.BatchNorm2d(unet.config.out_channels))


def train_diffusion(make_runtime: MakeRuntime, config: str) -> dict[str, Any]:
    runtime = make_runtime()
    trainer = GenericTrainer(load_config(config), Recorder(), TrainCommands(), runtime)
    with after_attaching(normalize_output):
        trainer.start()
    steps = list(trainer._steps())
    trainer.train()
    norm = trainer.prepared.base.module("unet").conv_out[1]
    return {
        "passes": [len(step.micro_batches) for step in steps],
        "padding": [step.padding for step in steps],
        "losses": trainer.callbacks.losses,
        "digest": digest(trainer.loop.trainable),
        "statistics": [norm.running_mean.tolist(), norm.running_var.tolist(), norm.num_batches_tracked.item()],
    }
