"""Creates the optimizers of modules/config/optimizers.py, and saves and loads their state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from modules.config.optimizers import OPTIMIZERS, OptimizerFacts
from modules.distributed.shards import assign
from modules.trainer.packages import check_packages
from modules.trainer.stochastic_rounding import split_into_chunks
from modules.trainer.TrainingError import TrainingError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from modules.config.OptimizerConfig import OptimizerConfig

FOUND = [name for facts in OPTIMIZERS.values() for name in facts.found]
AVERAGING_CLASSES = [facts.maker.rpartition(".")[2] for facts in OPTIMIZERS.values() if facts.averages_weights]


@dataclass(frozen=True)
class ParamGroup:
    """Parameters that share a learning rate and a weight decay (None: the optimizer's).

    stops_after: the last optimizer step (from 1) that trains them; None for the end of the run.
    rate_factor: multiplies the learning rate.
    """

    name: str
    params: list[nn.Parameter]
    learning_rate: float | None = None
    weight_decay: float | None = None
    stops_after: int | None = None
    rate_factor: float = 1.0


def create_optimizer(config: OptimizerConfig, groups: list[ParamGroup], learning_rate_factor: float = 1.0):
    """The optimizer of `config` over `groups`; each group stores its base learning rate as "initial_lr".

    Raises TrainingError if the optimizer's package is missing.
    """
    check_packages(config)
    if uses_stochastic_rounding(config, groups):
        groups = [replace(group, params=part) for group in groups for part in split_into_chunks(group.params)]
    param_groups = []
    for group in groups:
        rate = (group.learning_rate or config.learning_rate) * learning_rate_factor * group.rate_factor
        decay = config.weight_decay if group.weight_decay is None else group.weight_decay
        param_groups.append(
            {"params": group.params, "lr": rate, "initial_lr": rate, "weight_decay": decay, "name": group.name}
        )
    return _make(OPTIMIZERS[config.name], config, param_groups)


def uses_stochastic_rounding(config: OptimizerConfig, groups: list[ParamGroup]) -> bool:
    """Whether stochastic rounding is enabled and there are bfloat16 weights; adapters, for example, are float32."""
    bfloat16 = (param.dtype == torch.bfloat16 for group in groups for param in group.params)
    return config.stochastic_rounding and any(bfloat16)


def _make(facts: OptimizerFacts, config: OptimizerConfig, groups: list[dict]) -> torch.optim.Optimizer:
    module, _, name = facts.maker.rpartition(".")
    maker = getattr(import_module(module), name)
    optimizer = maker(groups, weight_decay=config.weight_decay, **facts.arguments(config))
    if facts.averages_weights:
        optimizer.train()  # permanently: `averaged_weights` does not change the training weights
    if facts.makes_momentum_late:
        _make_momentum(optimizer, config.stochastic_rounding)
    return optimizer


def _make_momentum(optimizer: torch.optim.Optimizer, rounds: bool) -> None:
    """Creates momentum buffers up front: torch creates them in the first step, uninitialized if that is skipped."""
    for group in optimizer.param_groups:
        for param in group["params"] if group["momentum"] else ():
            dtype = torch.float32 if rounds and param.dtype == torch.bfloat16 else param.dtype
            optimizer.state[param]["momentum_buffer"] = torch.zeros_like(param, dtype=dtype)


def make_layout_compatible(config: OptimizerConfig, params: Iterable[nn.Parameter]) -> None:
    """Makes `params` contiguous if the optimizer needs it. Call it before `Runtime.prepare`.

    In its first step, bitsandbytes changes the layout of channels-last weights, but not that of their state.
    """
    if not OPTIMIZERS[config.name].takes_channels_last:
        for param in params:
            param.data = param.data.contiguous()


def averaged_weights(optimizer: torch.optim.Optimizer) -> dict[Tensor, Tensor] | None:
    """Parameter -> averaged weight, for optimizers that average by themselves; None for all others.

    Equal to the package's `eval()`, but `train()` would not restore the training weights exactly.
    """
    if type(optimizer).__name__ not in AVERAGING_CLASSES:
        return None
    return {
        param: torch.lerp(param.detach().to(state["z"].dtype), state["z"], 1 - 1 / group["betas"][0])
        for group in optimizer.param_groups
        for param in group["params"]
        if "z" in (state := optimizer.state.get(param, {}))
    }


def optimizer_state(optimizer: torch.optim.Optimizer, names: dict[Tensor, str]) -> tuple[dict[str, Tensor], dict]:
    """The state as (tensors keyed "parameter/key", plain numbers for JSON)."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for param, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{names[param]}/{key}"] = value
            elif value is not None:  # torch's SGD stores None if momentum is disabled
                numbers.setdefault(names[param], {})[key] = value
    # only values that the optimizer has estimated; learning rates etc. come from the settings, which may have changed
    groups = [{key: group[key] for key in FOUND if key in group} for group in optimizer.param_groups]
    return tensors, {"kind": type(optimizer).__name__, "groups": groups, "state": numbers}


def check_same_optimizer(optimizer: torch.optim.Optimizer, numbers: dict) -> None:
    """Raises TrainingError if the state from `optimizer_state` belongs to another optimizer."""
    if numbers["kind"] != type(optimizer).__name__:
        raise TrainingError(
            f"The backup was made with the optimizer {numbers['kind']}, but optimizer.name selects "
            f"{type(optimizer).__name__}: resume with the optimizer of the original run."
        )
    if len(numbers["groups"]) != len(optimizer.param_groups):
        raise TrainingError(
            f"The optimizer of the backup has {len(numbers['groups'])} parameter groups, this one has "
            f"{len(optimizer.param_groups)}: resume with the same optimizer.stochastic_rounding, lora.plus_ratio and "
            "trained parts."
        )


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, names: dict[Tensor, str], tensors: dict[str, Tensor], numbers: dict
) -> None:
    """Restores what `optimizer_state` returned, for the same parameters."""
    params = {name: param for param, name in names.items()}
    optimizer.state.clear()
    for name, values in numbers["state"].items():
        optimizer.state[params[name]].update(values)
    for key, value in tensors.items():
        name, state_key = key.rsplit("/", 1)
        fused = bool(optimizer.param_groups[0].get("fused"))
        optimizer.state[params[name]][state_key] = _laid_out_like(params[name], value, fused)
    for group, saved in zip(optimizer.param_groups, numbers["groups"], strict=True):
        group.update(saved)


def _laid_out_like(param: Tensor, value: Tensor, fused: bool) -> Tensor:
    # Fused kernels ignore strides: a channels-last parameter with a contiguous moment gives silently wrong results.
    if value.shape == param.shape:
        laid_out = torch.empty_like(param, dtype=value.dtype)
        assign(laid_out, value)
        return laid_out
    # fused kernels need their step counter on the device; for other optimizers, that would cause a sync in each step
    return value.to(param.device) if fused or value.dim() else value
