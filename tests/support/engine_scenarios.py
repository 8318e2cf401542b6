"""Trainings by TrainingEngine that tests run on one rank and on several; see RankPool."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

from modules.engine.TrainingEngine import TrainingEngine
from modules.session.StepInfo import StepInfo
from modules.session.TrainCallbacks import TrainCallbacks
from tests.support.engine_data import Augmented, accuracy, adamw, points, small_net
from tests.support.RankPool import MakeRuntime

BATCH = 24  # of all ranks: five steps per epoch


def trained(folder: Path | str, name: str, norm: bool = True, **options: Any) -> TrainingEngine:
    """An engine that has trained on all ranks of this process; each step has the same samples on any number of them."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    name = f"{name}-{ranks}"
    engine = TrainingEngine(
        small_net(norm), device="cpu", distributed=ranks > 1, use_ema=True, output_dir=folder, experiment_name=name
    )
    batch = options.pop("batch_size", BATCH) // ranks
    if options.pop("validates", False):
        options["val_loader"] = DataLoader(points(50), batch_size=batch)
    options = {"optimizer": adamw(engine), "criterion": nn.CrossEntropyLoss(), **options}
    if options.pop("falls", False):
        options["scheduler"] = ReduceLROnPlateau(options["optimizer"], factor=0.5, patience=0, threshold=0.1)
    engine.train(DataLoader(Augmented(), batch_size=batch, shuffle=True), **options)
    return engine


def found(engine: TrainingEngine) -> dict[str, Any]:
    """What must be the same after every way to the end of a training."""
    weights = [value.double().flatten() for value in engine.state_dict()["tensors"]["model"].values()]
    history = engine.history.to_json()
    best = {name: history.get(name) for name in ("best_epoch", "best_step")}
    figures = {f"by step: {name}": values for name, values in history.get("by_step", {}).items()}
    return {"history": history["values"] | figures, "best": best, "weights": torch.cat(weights).tolist()}


class KilledAt(TrainCallbacks):
    """Ends the training as a kill would: nothing of it is kept."""

    def __init__(self, step: int):
        self._step = step

    def on_step(self, info: StepInfo) -> None:
        if info.step == self._step:
            raise RuntimeError("killed")


def killed_and_resumed(folder: str, step: int, **options: Any) -> TrainingEngine:
    """A training that saves every two steps, is killed after `step`, and goes on from the last checkpoint."""
    with contextlib.suppress(RuntimeError):
        trained(folder, "parts", callbacks=KilledAt(step), save_every_steps=2, **options)
    return trained(folder, "parts", resume=True, **options)


def train_for_some_steps(make_runtime: MakeRuntime, folder: str) -> dict[str, Any]:
    """Twelve steps at once, and as seven and five."""
    whole = trained(folder, "whole", max_steps=12)
    first = trained(folder, "parts", max_steps=7)
    rest = trained(folder, "parts", max_steps=12, resume=True)
    return {"whole": found(whole), "first": found(first), "rest": found(rest)}


def accumulate_by_schedule(make_runtime: MakeRuntime, folder: str) -> dict[str, Any]:
    """Batches of a quarter, of which each step has four in the first epoch, then two; also stopped and resumed."""
    options: dict[str, Any] = {"batch_size": BATCH // 4, "norm": False, "gradient_accumulation_steps": {0: 4, 1: 2}}
    whole = trained(folder, "whole", num_epochs=3, **options)
    trained(folder, "parts", max_steps=9, **options)
    parts = trained(folder, "parts", num_epochs=3, resume=True, **options)
    return {"whole": found(whole), "parts": found(parts)}


def validate_every_steps(make_runtime: MakeRuntime, folder: str) -> dict[str, Any]:
    """Every three steps, once at an epoch's end; the learning rate falls by these validations."""
    options: dict[str, Any] = {"num_epochs": 4, "validates": True, "validate_every_steps": 3, "falls": True}
    options |= {"metrics": {"accuracy": accuracy}, "save_top_k": 3}
    whole = trained(folder, "whole", **options)
    parts = killed_and_resumed(folder, 11, **options)
    return {"whole": found(whole) | kept(whole), "parts": found(parts) | kept(parts)}


def kept(engine: TrainingEngine) -> dict[str, list[str]]:
    """The checkpoints kept for their figure, by name, best first."""
    return {"kept": [str(path.relative_to(engine.folder)) for path in engine.top_checkpoints]}


class Drawn:
    """A buffer of numbers that a step function fills, as one for replay."""

    def __init__(self) -> None:
        self.values = torch.zeros(0, dtype=torch.float64)
        self.counts = {"calls": 0, (1, "odd"): [float("inf"), None, ("a", np.float32(0.5))]}

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values, "counts": self.counts, "squares": np.arange(3) ** 2}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["squares"].tolist() == [0, 1, 4]
        self.values, self.counts = state["values"], state["counts"]


def keep_extra_state(make_runtime: MakeRuntime, folder: str) -> dict[str, Any]:
    """A teacher that follows the model and is a part of the loss, and a buffer; killed and resumed."""

    def options() -> dict[str, Any]:
        teacher, drawn = small_net(), Drawn()

        def step_fn(model: nn.Module, batch: Any) -> torch.Tensor:
            drawn.counts["calls"] += 1
            output = model(batch[0])
            with torch.no_grad():
                drawn.values = torch.cat([drawn.values, next(teacher.parameters()).mean()[None]])[-5:]
                for own, other in zip(teacher.parameters(), model.parameters(), strict=True):
                    own.lerp_(other, 0.1)
                target = teacher.eval()(batch[0])
            return nn.functional.mse_loss(output, target) + nn.functional.cross_entropy(output, batch[1])

        extra = {"teacher": teacher, "drawn": drawn}
        return {"criterion": None, "step_fn": step_fn, "extra_state": extra, "num_epochs": 3}

    whole, parts = options(), options()
    engine = trained(folder, "whole", **whole)
    with contextlib.suppress(RuntimeError):
        trained(folder, "parts", callbacks=KilledAt(8), save_every_steps=2, **options())
    resumed = trained(folder, "parts", resume=True, **parts)
    return {"whole": found(engine) | _extra(whole), "parts": found(resumed) | _extra(parts)}


def _extra(options: dict[str, Any]) -> dict[str, Any]:
    drawn = options["extra_state"]["drawn"]
    return {"values": drawn.values.tolist(), "counts": repr(drawn.counts)}
