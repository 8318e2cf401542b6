"""Checks of what programs pass to TrainingEngine: a mistake is told in one sentence before training starts."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import Dataset, IterableDataset

from modules.config.errors import UserError
from modules.distributed.shards import is_sharded
from modules.engine.Monitor import Monitor

Backend = Literal["auto", "nccl", "gloo"]
BACKENDS = (None, *get_args(Backend))
INTERVALS = ("epoch", "step")
OF_WHOLE_MATRICES = ("Adafactor", "Muon")  # classes of torch's optimizers
OWN_FIGURES = ("loss", "train_loss", "val_loss", "lr")


def check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise UserError(f"model: {_spoken(model)} is not a torch module; pass an instance of nn.Module.")
    if any(map(is_lazy, model.parameters())):
        raise UserError("model: its lazy modules have no shapes yet; run one batch through it before.")
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True and isinstance(module, nn.Embedding | nn.EmbeddingBag):
            raise UserError(
                f"model: {name} has sparse gradients, which can't be clipped or averaged; use sparse=False."
            )


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


def check_accumulation(value: Any) -> None:
    name = "gradient_accumulation_steps"
    if not isinstance(value, Mapping):
        return check_count(name, value)
    if not value:
        raise UserError(f"{name} {{}}: it names no epoch; use a number, or a mapping such as {{0: 8, 4: 2}}.")
    for epoch, batches in value.items():
        if not isinstance(epoch, Integral) or isinstance(epoch, bool) or epoch < 0:
            raise UserError(
                f"{name}: {epoch!r} is not a number of epochs; use whole numbers from 0, as in {{0: 8, 4: 2}}."
            )
        check_count(f"{name}[{epoch}]", batches)


def check_length(num_epochs: Any, max_steps: Any) -> None:
    if num_epochs is None and max_steps is None:
        raise UserError("train: nothing says when to end; pass num_epochs or max_steps.")
    if num_epochs is not None:
        check_count("num_epochs", num_epochs)
    if max_steps is not None:
        check_count("max_steps", max_steps)


def check_validation(validate_every_steps: Any, val_loader: Any) -> None:
    if validate_every_steps is None:
        return
    check_count("validate_every_steps", validate_every_steps)
    if val_loader is None:
        raise UserError(f"validate_every_steps {validate_every_steps}: nothing is held out; pass a val_loader.")


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


def check_prediction(outputs: Any) -> None:
    if not isinstance(outputs, Tensor):
        raise UserError(f"predict: the model returns {_spoken(outputs)}; wrap it in one that returns a tensor.")


def check_loader(name: str, loader: Any) -> None:
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise UserError(f"{name}: {_spoken(loader)} is a dataset, which has no batches; pass a DataLoader of it.")
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        raise UserError(f"{name}: {_spoken(loader)} yields no batches; pass a DataLoader.")


def check_criterion(criterion: Any, device: torch.device) -> Any:
    """The criterion, on the device if it is a module. Raises UserError if it would have to be trained."""
    if not isinstance(criterion, nn.Module):
        return criterion
    if any(param.requires_grad for param in criterion.parameters()):
        raise UserError(
            f"criterion: {_spoken(criterion)} has trainable parameters, which are not the model's; make it a part of "
            "the model, and pass a step_fn that returns the loss."
        )
    return criterion.to(device)


def check_optimizer(optimizer: Any, model: nn.Module) -> None:
    if not isinstance(optimizer, Optimizer):
        raise UserError(f"optimizer: {_spoken(optimizer)} is not a torch optimizer; pass an instance of one.")
    if isinstance(optimizer, LBFGS):
        raise UserError("optimizer: LBFGS computes the loss several times per step, which is not supported; use AdamW.")
    if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
        raise UserError(
            "optimizer: ZeroRedundancyOptimizer has only a part of its state on each rank, which checkpoints would "
            "lose; pass the optimizer inside it."
        )
    shards = any(map(is_sharded, model.parameters()))
    if shards and type(optimizer).__name__ in OF_WHOLE_MATRICES:
        raise UserError(
            f"optimizer: {type(optimizer).__name__} needs whole matrices, of which each rank has some rows; use AdamW, "
            "or strategy='zero1'."
        )
    own = set(model.parameters())
    if any(param not in own for group in optimizer.param_groups for param in group["params"]):
        order = " after the engine, which replaces them" if shards else ""
        raise UserError(
            f"optimizer: it has parameters that are not the model's; create it with model.parameters(){order}."
        )


def check_scheduler(scheduler: Any, interval: Any, optimizer: Optimizer) -> None:
    if interval not in INTERVALS:
        raise UserError(f"scheduler_interval {interval!r}: use 'epoch' or 'step'.")
    if scheduler is None:
        return
    if isinstance(scheduler, type) or not callable(getattr(scheduler, "step", None)):
        raise UserError(f"scheduler: {_spoken(scheduler)} is not a torch scheduler; pass an instance of one.")
    if not isinstance(scheduler, LRScheduler) and not _can_step(scheduler):
        raise UserError(
            f"scheduler: {_spoken(scheduler)}.step() needs arguments; pass an object whose step() passes them."
        )
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise UserError("scheduler: it changes another optimizer; create it with the one that is passed to train.")
    if isinstance(scheduler, ReduceLROnPlateau) and interval == "step":
        raise UserError("scheduler_interval 'step': ReduceLROnPlateau needs the metric of a whole epoch; use 'epoch'.")


def check_plateau(scheduler: Any, monitor: Monitor) -> None:
    if isinstance(scheduler, ReduceLROnPlateau) and scheduler.mode != monitor.mode:
        raise UserError(
            f"scheduler: ReduceLROnPlateau has mode {scheduler.mode!r}, but of {monitor.name}, {monitor.spoken} values "
            f"are better; create it with mode={monitor.mode!r}."
        )


def check_resume(resume: Any) -> None:
    if resume is not None and not isinstance(resume, bool | str | os.PathLike):
        raise UserError(f"resume {resume!r}: use True, 'last', 'best' or the folder of a checkpoint.")


def check_state(state: Any) -> None:
    if not hasattr(state, "keys") or not {"tensors", "data"} <= set(state):
        raise UserError(
            "load_state_dict: this is not what TrainingEngine.state_dict returned; load the state dict of a model with "
            "engine.model.load_state_dict."
        )


def _can_step(scheduler: Any) -> bool:
    try:
        inspect.signature(scheduler.step).bind()
    except TypeError:
        return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _spoken(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
