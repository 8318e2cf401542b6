"""Checks of optimizers and schedulers that a program passes to TrainingEngine, one or several by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from modules.config.errors import UserError
from modules.config.optimizers import OPTIMIZERS
from modules.engine.arguments import check_optimizer, check_scheduler


def check_optimizers(optimizers: Any, schedulers: Any, interval: Any, model: nn.Module) -> None:
    """optimizers, schedulers: a single one each, or mappings from names."""
    if not isinstance(optimizers, Mapping):
        if isinstance(schedulers, Mapping):
            raise UserError("scheduler: several need several optimizers; pass the optimizer by name, too.")
        check_optimizer(optimizers, model)
        check_scheduler(schedulers, interval, optimizers)
        return
    if not optimizers or not all(isinstance(name, str) and name for name in optimizers):
        raise UserError('optimizer: the mapping must have names, such as {"generator": ..., "discriminator": ...}.')
    if schedulers is not None and not isinstance(schedulers, Mapping):
        raise UserError(f"scheduler: optimizers are passed by name; pass {{{next(iter(optimizers))!r}: scheduler}}.")
    for name, optimizer in optimizers.items():
        check_optimizer(optimizer, model)
        check_scheduler((schedulers or {}).get(name), interval, optimizer)
    for name in schedulers or {}:
        if name not in optimizers:
            raise UserError(f"scheduler {name!r}: there is no optimizer of this name, only {', '.join(optimizers)}.")
    _check_shared_parameters(optimizers, model)


def _check_shared_parameters(optimizers: Mapping[str, Optimizer], model: nn.Module) -> None:
    owners: dict[nn.Parameter, str] = {}
    names = {param: name for name, param in model.named_parameters()}
    for name, optimizer in optimizers.items():
        for param in (param for group in optimizer.param_groups for param in group["params"]):
            owner = owners.setdefault(param, name)
            if owner != name:
                raise UserError(
                    f"optimizer: both {owner!r} and {name!r} have {names[param]}; give each parameter to one of them."
                )


def check_steps_alone(optimizers: Optimizer | Mapping[str, Optimizer]) -> None:
    """What can be stepped a few parameters at a time: torch's own optimizers, and others of which it is known."""
    known = [facts.maker.split(".") for facts in OPTIMIZERS.values() if facts.steps_alone]
    for optimizer in optimizers.values() if isinstance(optimizers, Mapping) else [optimizers]:
        kind = type(optimizer)
        package = kind.__module__.split(".")
        if package[:2] != ["torch", "optim"] and [package[0], kind.__name__] not in ([m[0], m[-1]] for m in known):
            raise UserError(
                f"optimizer_state_in_ram: {kind.__name__} may have to step all weights together, for which its whole "
                "state must be on the device; use an optimizer of torch.optim, or leave optimizer_state_in_ram out."
            )


def check_steps_by_hand(has_step_fn: bool, accumulation: int | Mapping[int, int]) -> None:
    """What optimizers by name can be combined with."""
    if not has_step_fn:
        raise UserError(
            "optimizer: optimizers by name need a step_fn, which calls engine.backward(loss, name) for each of them."
        )
    if any(count > 1 for count in (accumulation.values() if isinstance(accumulation, Mapping) else [accumulation])):
        raise UserError(
            f"gradient_accumulation_steps {accumulation}: optimizers by name make a step in each engine.backward; use "
            "larger batches."
        )
