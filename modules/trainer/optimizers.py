"""Makes the optimizers of modules/config/optimizers.py, and holds their state as tensors and plain numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from modules.config.optimizers import OPTIMIZERS, OptimizerFacts
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

    stops_after: the optimizer step (from 1) after which they stay as they are; None trains them to the end.
    """

    name: str
    params: list[nn.Parameter]
    learning_rate: float | None = None
    weight_decay: float | None = None
    stops_after: int | None = None


def create_optimizer(config: OptimizerConfig, groups: list[ParamGroup], learning_rate_factor: float = 1.0):
    """The optimizer of `config` over `groups`; each group keeps its base rate under "initial_lr".

    Raises TrainingError where the optimizer's package is missing.
    """
    check_packages(config)
    if uses_stochastic_rounding(config, groups):
        groups = [replace(group, params=part) for group in groups for part in split_into_chunks(group.params)]
    param_groups = []
    for group in groups:
        rate = (group.learning_rate or config.learning_rate) * learning_rate_factor
        decay = config.weight_decay if group.weight_decay is None else group.weight_decay
        param_groups.append(
            {"params": group.params, "lr": rate, "initial_lr": rate, "weight_decay": decay, "name": group.name}
        )
    return _make(OPTIMIZERS[config.name], config, param_groups)


def uses_stochastic_rounding(config: OptimizerConfig, groups: list[ParamGroup]) -> bool:
    """Whether stochastic rounding is wanted and there is anything to round: adapters, for one, are in float32."""
    bfloat16 = (param.dtype == torch.bfloat16 for group in groups for param in group.params)
    return config.stochastic_rounding and any(bfloat16)


def _make(facts: OptimizerFacts, config: OptimizerConfig, groups: list[dict]) -> torch.optim.Optimizer:
    module, _, name = facts.maker.rpartition(".")
    maker = getattr(import_module(module), name)
    optimizer = maker(groups, weight_decay=config.weight_decay, **facts.arguments(config))
    if facts.averages_weights:
        optimizer.train()  # for good: `averaged_weights` leaves the weights that train as they are
    if facts.makes_momentum_late:
        _make_momentum(optimizer, config.stochastic_rounding)
    return optimizer


def _make_momentum(optimizer: torch.optim.Optimizer, rounds: bool) -> None:
    """torch makes it in the first step, and leaves it without values where that step is skipped as not finite."""
    for group in optimizer.param_groups:
        for param in group["params"] if group["momentum"] else ():
            dtype = torch.float32 if rounds and param.dtype == torch.bfloat16 else param.dtype
            optimizer.state[param]["momentum_buffer"] = torch.zeros_like(param, dtype=dtype)


def make_layout_compatible(config: OptimizerConfig, params: Iterable[nn.Parameter]) -> None:
    """Makes `params` contiguous where the optimizer needs it; to be called before they are prepared for the ranks.

    bitsandbytes lays channels-last weights out anew in its first step, but not the state it has made for them.
    """
    if not OPTIMIZERS[config.name].takes_channels_last:
        for param in params:
            param.data = param.data.contiguous()


def averaged_weights(optimizer: torch.optim.Optimizer) -> dict[Tensor, Tensor] | None:
    """Parameter -> the average that is to be used, of an optimizer that trains other weights than it gives.

    None for all others. As the package's `eval()`, whose way back with `train()` would be off by roundings.
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
            elif value is not None:  # as torch's SGD keeps of a momentum that is switched off
                numbers.setdefault(names[param], {})[key] = value
    # only what the optimizer has found out by itself: rates and other settings come from the settings, changed or not
    groups = [{key: group[key] for key in FOUND if key in group} for group in optimizer.param_groups]
    return tensors, {"kind": type(optimizer).__name__, "groups": groups, "state": numbers}


def check_same_optimizer(optimizer: torch.optim.Optimizer, numbers: dict) -> None:
    """Raises TrainingError where what `optimizer_state` gave is of another optimizer."""
    if numbers["kind"] != type(optimizer).__name__:
        raise TrainingError(
            f"The backup is of the optimizer {numbers['kind']} and optimizer.name asks for "
            f"{type(optimizer).__name__}: resume with the optimizer of the run it is from."
        )
    if len(numbers["groups"]) != len(optimizer.param_groups):
        raise TrainingError(
            f"The backup's optimizer has {len(numbers['groups'])} groups of weights, this one "
            f"{len(optimizer.param_groups)}: resume with the same optimizer.stochastic_rounding and trained parts."
        )


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, names: dict[Tensor, str], tensors: dict[str, Tensor], numbers: dict
) -> None:
    """Puts back what `optimizer_state` gave, for the same parameters."""
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
    # The fused kernels walk raw memory: a channels-last parameter with a contiguous moment is silently wrong.
    if value.shape == param.shape:
        return torch.empty_like(param, dtype=value.dtype).copy_(value)
    # a fused kernel wants its step counter on the device, any other optimizer would wait for it there
    return value.to(param.device) if fused or value.dim() else value
