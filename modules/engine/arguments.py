"""Checks of what programs pass to TrainingEngine: a mistake is told in one sentence before training starts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any, Literal, get_args

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import Dataset, IterableDataset

from modules.config.errors import UserError
from modules.session.TrainCallbacks import TrainCallbacks

Backend = Literal["auto", "nccl", "gloo"]
BACKENDS = (None, *get_args(Backend))
INTERVALS = ("epoch", "step")
OWN_FIGURES = ("loss", "train_loss", "val_loss", "lr")


def check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise UserError(f"model: {_spoken(model)} is not a torch module; pass an instance of nn.Module.")


def check_backend(backend: Any) -> None:
    if backend not in BACKENDS:
        raise UserError(f"backend {backend!r}: use 'nccl', 'gloo' or None, which chooses one.")


def check_ema_decay(decay: Any) -> None:
    if not (_is_number(decay) and 0 <= decay < 1):
        raise UserError(f"ema_decay {decay!r}: it must be at least 0 and less than 1.")


def check_count(name: str, value: Any) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise UserError(f"{name} {value!r}: it must be a whole number.")
    if value < 1:
        raise UserError(f"{name} {value}: it must be at least 1.")


def check_clip_grad_norm(norm: Any) -> None:
    if norm is not None and not (_is_number(norm) and norm >= 0):
        raise UserError(f"clip_grad_norm {norm!r}: it must be a positive number, or None to leave gradients unclipped.")


def check_function(name: str, function: Any) -> None:
    """function: None is none."""
    if isinstance(function, type):
        raise UserError(f"{name}: {function.__name__} is a class; pass an instance, such as {function.__name__}().")
    if function is not None and not callable(function):
        raise UserError(f"{name}: {_spoken(function)} can't be called; pass a function.")


def check_metrics(metrics: Any) -> None:
    """metrics: a mapping, which a torchmetrics MetricCollection resembles."""
    if metrics is not None and not callable(getattr(metrics, "items", None)):
        raise UserError(f"metrics: {_spoken(metrics)} has no names; pass a dictionary, name -> function.")


def check_metric_name(name: str) -> None:
    if name in OWN_FIGURES or name.startswith("lr/") or name.endswith("/count"):
        raise UserError(f"metric {name!r}: the engine has a figure of this name itself; choose another name.")


def check_monitor(monitor: Any, figures: Iterable[str]) -> None:
    if monitor not in figures:
        raise UserError(f"monitor {monitor!r} is not among the metrics: {', '.join(figures)}.")


def check_prediction(outputs: Any) -> None:
    if not isinstance(outputs, Tensor):
        raise UserError(f"predict: the model returns {_spoken(outputs)}; wrap it in one that returns a tensor.")


def check_loader(name: str, loader: Any) -> None:
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise UserError(f"{name}: {_spoken(loader)} is a dataset, which has no batches; pass a DataLoader of it.")
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        raise UserError(f"{name}: {_spoken(loader)} yields no batches; pass a DataLoader.")


def check_optimizer(optimizer: Any, model: nn.Module) -> None:
    if not isinstance(optimizer, Optimizer):
        raise UserError(f"optimizer: {_spoken(optimizer)} is not a torch optimizer; pass an instance of one.")
    if isinstance(optimizer, LBFGS):
        raise UserError("optimizer: LBFGS computes the loss several times per step, which is not supported; use AdamW.")
    own = set(model.parameters())
    if any(param not in own for group in optimizer.param_groups for param in group["params"]):
        raise UserError("optimizer: it has parameters that are not the model's; create it with model.parameters().")


def check_scheduler(scheduler: Any, interval: Any, optimizer: Optimizer) -> None:
    if interval not in INTERVALS:
        raise UserError(f"scheduler_interval {interval!r}: use 'epoch' or 'step'.")
    if scheduler is None:
        return
    if isinstance(scheduler, type) or not callable(getattr(scheduler, "step", None)):
        raise UserError(f"scheduler: {_spoken(scheduler)} is not a torch scheduler; pass an instance of one.")
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise UserError("scheduler: it changes another optimizer; create it with the one that is passed to train.")
    if isinstance(scheduler, ReduceLROnPlateau) and interval == "step":
        raise UserError("scheduler_interval 'step': ReduceLROnPlateau needs the metric of a whole epoch; use 'epoch'.")


def check_callbacks(callbacks: Any) -> None:
    if callbacks is not None and not isinstance(callbacks, TrainCallbacks):
        raise UserError(f"callbacks: {_spoken(callbacks)} is not a TrainCallbacks; derive your class from it.")


def check_resume(resume: Any) -> None:
    if resume is not None and not isinstance(resume, bool | str | os.PathLike):
        raise UserError(f"resume {resume!r}: use True, 'last', 'best' or the folder of a checkpoint.")


def check_state(state: Any) -> None:
    if not hasattr(state, "keys") or not {"tensors", "data"} <= set(state):
        raise UserError(
            "load_state_dict: this is not what TrainingEngine.state_dict returned; load the state dict of a model with "
            "engine.model.load_state_dict."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _spoken(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
