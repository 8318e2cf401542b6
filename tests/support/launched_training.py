"""A program that launches trainings: SCENARIO FOLDER [RANKS]; what it finds goes to FOLDER/SCENARIO-RANKS.json."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from modules.config.errors import UserError
from modules.session.TrainCallbacks import TrainCallbacks
from modules.trainer import TrainingEngine, distributed_train_worker, launch_distributed_training
from tests.support.engine_data import Augmented, Stream, accuracy, adamw, points, small_net


def worker(folder: Path, name: str, ranks: int, norm: bool = True, **options: Any) -> dict[str, Any]:
    """The arguments of the built-in worker; the global batch size is the same on N ranks as on one."""
    return {
        "model_fn": lambda: small_net(norm),
        "train_dataset": Augmented(),
        "val_dataset": points(50),
        "batch_size": 24 // ranks,
        "optimizer_fn": lambda params: torch.optim.AdamW(params, lr=1e-2),
        "criterion_fn": nn.CrossEntropyLoss,
        "engine_kwargs": {"output_dir": folder, "experiment_name": f"{name}-{ranks}", "use_ema": True},
        "train_kwargs": {"num_epochs": 3, "metrics": {"accuracy": accuracy}, **options},
    }


def curves(folder: Path, ranks: int) -> dict[str, Any]:
    """Everything that should be the same on one rank and on two, in one launch."""

    def train(rank: int, world_size: int) -> dict[str, Any]:
        found = {}
        for name, norm in {"norm": True, "plain": False}.items():
            found[name] = dict(distributed_train_worker(rank, world_size, **worker(folder, name, world_size, norm)))
        several = world_size > 1
        engine = TrainingEngine(small_net(), distributed=several, output_dir=folder, experiment_name=f"stream-{ranks}")
        loss = nn.CrossEntropyLoss()
        stream = DataLoader(Stream(), batch_size=24 // world_size)
        options = {"optimizer": adamw(engine), "criterion": loss, "num_epochs": 2}
        found["stream"] = dict(engine.train(stream, gradient_accumulation_steps=2, **options))
        found["time first"] = dict(train_on_sequences(folder, world_size))
        if find_spec("torchmetrics"):
            found["objects"] = evaluate_objects(engine)
        found["predictions"] = engine.predict(DataLoader(points(11), batch_size=2)).tolist()
        found["mean"] = engine.reduce_tensor(torch.tensor([float(rank)])).tolist()
        if several:
            found["uneven"] = dict(train_uneven(engine, rank))
            found["tutorial"] = [train_as_in_the_tutorial(rank, folder, by_engine) for by_engine in (False, True)]
        return found

    return launch_distributed_training(train, world_size=ranks)


class Recurrent(nn.Module):
    """A recurrent network, whose batches have time first."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(1, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(inputs)[0][-1])


def train_on_sequences(folder: Path, world_size: int) -> Any:
    torch.manual_seed(1)
    name = f"sequences-{world_size}"
    engine = TrainingEngine(Recurrent().double(), distributed=world_size > 1, output_dir=folder, experiment_name=name)
    loader: Any = DataLoader(
        points(37),  # the last step has fewer
        batch_size=8 // world_size,
        collate_fn=lambda samples: (
            torch.stack([inputs[:, None] for inputs, _ in samples], dim=1),
            torch.stack([target for _, target in samples]),
        ),
    )
    return engine.train(loader, optimizer=adamw(engine), criterion=nn.CrossEntropyLoss(), num_epochs=2)


def evaluate_objects(engine: TrainingEngine) -> dict[str, Any]:
    """Accuracy by torchmetrics and by hand, AUROC, which needs all outputs at once, and AUROC of a single sample."""
    from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC

    class Auroc(MulticlassAUROC):
        def update(self, output: torch.Tensor, target: torch.Tensor) -> None:  # guesses for each batch what logits are
            super().update(output.softmax(1), target)

    auroc = Auroc(num_classes=2)
    metrics = {"object": MulticlassAccuracy(num_classes=2, average="micro"), "hand": accuracy, "auroc": auroc}
    found: dict[str, Any] = engine.evaluate(DataLoader(points(50), batch_size=7), metrics=metrics)
    try:
        engine.evaluate(DataLoader(points(1), batch_size=7), metrics={"auroc": auroc})
    except UserError as error:
        found["refusal"] = str(error)
    return found


def train_uneven(engine: TrainingEngine, rank: int) -> Any:
    """Rank 1 has its own loader with fewer batches."""
    data = points(30 if rank else 60)
    loader = DataLoader(data, batch_size=10, sampler=DistributedSampler(data, num_replicas=1, rank=0))
    return engine.train(loader, optimizer=adamw(engine), criterion=nn.CrossEntropyLoss(), num_epochs=2)


def train_as_in_the_tutorial(rank: int, folder: Path, by_engine: bool) -> list[float]:
    """The basic use case of PyTorch's DDP tutorial for 100 steps, in float64: the mean loss over two ranks of each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)).double()
    batches = [(torch.randn(20, 10).double(), torch.randn(20, 5).double()) for _ in range(200)]  # for each rank in turn
    if by_engine:
        told = Losses()
        engine = TrainingEngine(model, distributed=True, output_dir=folder, experiment_name="tutorial")
        optimizer = torch.optim.SGD(engine.model.parameters(), lr=0.1)
        engine.train(batches, optimizer=optimizer, criterion=nn.MSELoss(), num_epochs=1, callbacks=told)
        return told.losses
    losses = []
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
    for inputs, labels in batches[rank::2]:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(ddp_model(inputs), labels)
        loss.backward()
        optimizer.step()
        total = loss.detach()
        torch.distributed.all_reduce(total)
        losses.append(total.item() / 2)
    return losses


class Losses(TrainCallbacks):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, info: Any) -> None:
        self.losses.append(info.loss)


def failing(folder: Path, ranks: int) -> dict[str, str]:
    """The messages of failing ranks, one launch for each kind of failure."""

    def raise_error(rank: int, world_size: int) -> None:
        if rank == 1:
            raise RuntimeError("the data are gone")
        time.sleep(60)

    def die(rank: int, world_size: int) -> None:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    def with_lock(rank: int, world_size: int, lock: Any) -> None:
        raise AssertionError("this is never called")

    def hang(rank: int, world_size: int) -> None:
        def step_fn(model: nn.Module, batch: Any) -> torch.Tensor:
            if rank == 1:
                time.sleep(600)
            return model(batch[0]).square().mean()

        engine = TrainingEngine(small_net(), distributed=True, output_dir=folder, experiment_name="hang")
        engine.train(DataLoader(points(), batch_size=8), optimizer=adamw(engine), step_fn=step_fn, num_epochs=1)

    os.environ["CHORUS_HEARTBEAT_SECONDS"] = "training=3"
    said = {}
    for name, (function, options) in {
        "raise": (raise_error, {}),
        "die": (die, {}),
        "hang": (hang, {}),
        "lock": (with_lock, {"lock": threading.Lock()}),
    }.items():
        try:
            launch_distributed_training(function, world_size=ranks, **options)
        except UserError as error:
            said[name] = str(error)
    return said


class Doubled(Augmented):
    """A dataset of the program's own, which no other process can import."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, target = super().__getitem__(index)
        return 2 * inputs, target


def once(folder: Path, ranks: int) -> dict[str, Any]:
    """The first of the curves alone."""
    return dict(launch_distributed_training(world_size=ranks, **worker(folder, "once", ranks)))


def workers(folder: Path, ranks: int) -> dict[str, Any]:
    """The same training with the samples loaded in this process, in forked and in spawned workers."""
    offset = 1.0

    def train(rank: int, world_size: int) -> dict[str, Any]:
        found = {}
        for name, options in {
            "none": {},
            "own": {"num_workers": 2},
            # of one rank: each that is spawned imports torch
            "spawn": {"num_workers": 1, "multiprocessing_context": "spawn"} if rank == world_size - 1 else {},
        }.items():
            started: Any = (lambda worker: torch.manual_seed(worker)) if options else None
            several = world_size > 1
            engine = TrainingEngine(small_net(), distributed=several, output_dir=folder, experiment_name=name)
            loader: Any = DataLoader(
                Doubled(),
                batch_size=24 // world_size,
                collate_fn=lambda samples: (
                    torch.stack([inputs for inputs, _ in samples]) + offset,
                    torch.stack([target for _, target in samples]),
                ),
                worker_init_fn=started,
                **options,
            )
            criterion = nn.CrossEntropyLoss()
            found[name] = engine.train(loader, optimizer=adamw(engine), criterion=criterion, num_epochs=1)["train_loss"]
        return found

    return launch_distributed_training(train, world_size=ranks)


def mistakes(folder: Path, ranks: int) -> dict[str, Any]:
    """What programs do wrong that only shows on several ranks, in one launch, and one that is right."""

    def around_its_argument(engine: TrainingEngine) -> Any:
        def step_fn(model: nn.Module, batch: Any) -> torch.Tensor:
            return nn.functional.cross_entropy(engine.model(batch[0]), batch[1])

        return step_fn

    def by_attribute(engine: TrainingEngine) -> Any:
        def step_fn(model: Any, batch: Any) -> torch.Tensor:
            assert len(model.layers) == 1
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        return step_fn

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([small_net(norm=False)])

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.layers[0](inputs)

    class HalfUsed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = small_net(norm=False), nn.Linear(4, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.used(inputs)

    def train(rank: int, world_size: int) -> dict[str, str]:
        found = {}
        for name, make_step_fn in {"around": around_its_argument, "attribute": by_attribute}.items():
            model = DistributedDataParallel(Layers())
            engine = TrainingEngine(model, distributed=True, output_dir=folder, experiment_name=name)
            options: Any = {"optimizer": adamw(engine), "step_fn": make_step_fn(engine), "num_epochs": 1}
            try:
                engine.train(DataLoader(points(), batch_size=8), **options)
                found[name] = next(iter(engine.model.state_dict()))
            except UserError as error:
                found[name] = str(error)
        engine = TrainingEngine(HalfUsed(), distributed=True, output_dir=folder, experiment_name="half used")
        options = {"optimizer": adamw(engine), "criterion": nn.CrossEntropyLoss(), "num_epochs": 1}
        try:
            engine.train(DataLoader(points(), batch_size=8), **options)
        except UserError as error:
            found["half used"] = str(error)
        try:
            TrainingEngine(small_net(), distributed=True, output_dir=folder, experiment_name=f"of rank {rank}")
        except UserError as error:
            found["another program"] = str(error)
        return found

    return launch_distributed_training(train, world_size=ranks)


def long(folder: Path, ranks: int) -> dict[str, Any]:
    """A training to be stopped; it prints its current step."""
    options = worker(folder, "long", ranks)
    written = folder / f"long-{ranks}" / "history.json"
    epochs = json.loads(written.read_text())["epochs"] + 1 if written.exists() else 10_000
    options["train_kwargs"] = {"num_epochs": epochs, "resume": True}
    return dict(launch_distributed_training(world_size=ranks, **options))


def alone(folder: Path, ranks: int) -> dict[str, Any]:
    """The ranks can't join, so one process trains."""
    os.environ["CHORUS_JOIN_SECONDS"] = "0.2"
    os.environ["GLOO_SOCKET_IFNAME"] = "no-such-interface"

    def train(rank: int, world_size: int) -> list[int]:
        return [rank, world_size]

    return {"ran": launch_distributed_training(train, world_size=ranks)}


if __name__ == "__main__":
    scenario, folder, ranks = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    found = globals()[scenario](folder, ranks)
    (folder / f"{scenario}-{ranks}.json").write_text(json.dumps(found))
