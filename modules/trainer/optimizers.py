"""Creates the optimizers of modules/config/optimizers.py, and saves and loads their state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from modules.config.optimizers import OPTIMIZERS, OptimizerFacts, facts_of_optimizer
from modules.distributed.shards import DividedRows, assign
from modules.trainer.packages import MATRICES, check_optimizer_packages, optimizer_class
from modules.trainer.stochastic_rounding import split_into_chunks
from modules.trainer.TrainingError import TrainingError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from modules.config.OptimizerConfig import OptimizerConfig
    from modules.distributed.shards import Saved

SMALLEST_IN_RAM = 2**14  # bytes; counters and small tensors of a state are not worth the copies

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


def create_optimizer(
    config: OptimizerConfig,
    groups: list[ParamGroup],
    learning_rate_factor: float = 1.0,
    updates: Callable[[Tensor], bool] = lambda param: True,
):
    """The optimizer of `config` over `groups`; each group stores its base learning rate as "initial_lr".

    updates: whether this rank will update a parameter.
    Raises TrainingError if the optimizer's package is missing.
    """
    check_optimizer_packages(config)
    if uses_stochastic_rounding(config, groups):
        groups = [replace(group, params=part) for group in groups for part in split_into_chunks(group.params)]
    facts = facts_of_optimizer(config)
    param_groups = []
    for group in groups:
        rate = (group.learning_rate or config.learning_rate) * learning_rate_factor * group.rate_factor
        decay = config.weight_decay if group.weight_decay is None else group.weight_decay
        param_groups.append(
            {"params": group.params, "lr": rate, "initial_lr": rate, "weight_decay": decay, "name": group.name}
        )
    return _make(facts, config, _split(facts, config, param_groups) if facts.splits else param_groups, updates)


def _split(facts: OptimizerFacts, config: OptimizerConfig, groups: list[dict]) -> list[dict]:
    """`groups` with matrices and other weights apart, the others first: the rate shown of a name is its last one's."""
    default = inspect.signature(optimizer_class(facts)).parameters["adamw_lr"].default
    rate = facts.arguments(config).get("adamw_lr", default) / config.learning_rate
    apart = []
    for group in groups:
        matrices = [param for param in group["params"] if param.dim() >= 2]
        if others := [param for param in group["params"] if param.dim() < 2]:
            rates = {"lr": group["lr"] * rate, "initial_lr": group["lr"] * rate}
            apart.append({**group, **rates, "params": others, MATRICES: False})
        if matrices:
            apart.append({**group, "params": matrices, MATRICES: True})
    return apart


def uses_stochastic_rounding(config: OptimizerConfig, groups: list[ParamGroup]) -> bool:
    """Whether stochastic rounding is enabled and there are bfloat16 weights; adapters, for example, are float32."""
    bfloat16 = (param.dtype == torch.bfloat16 for group in groups for param in group.params)
    return config.stochastic_rounding and any(bfloat16)


def _make(
    facts: OptimizerFacts, config: OptimizerConfig, groups: list[dict], updates: Callable[[Tensor], bool]
) -> torch.optim.Optimizer:
    optimizer = optimizer_class(facts)(groups, weight_decay=config.weight_decay, **facts.arguments(config))
    if facts.averages_weights:
        optimizer.train()  # permanently: `averaged_weights` does not change the training weights
    if facts.makes_momentum_late:
        _make_momentum(optimizer, config, updates)
    return optimizer


def _make_momentum(
    optimizer: torch.optim.Optimizer, config: OptimizerConfig, updates: Callable[[Tensor], bool]
) -> None:
    """Creates momentum buffers up front: torch creates them in the first step, uninitialized if that is skipped."""
    for group in optimizer.param_groups:
        for param in filter(updates, group["params"]) if group["momentum"] else ():
            rounds = config.stochastic_rounding and param.dtype == torch.bfloat16
            dtype = torch.float32 if rounds else param.dtype
            device = _state_device(param, dtype, config.state_in_ram)
            optimizer.state[param]["momentum_buffer"] = torch.zeros_like(param, dtype=dtype, device=device)


def _state_device(param: Tensor, dtype: torch.dtype, in_ram: bool) -> torch.device:
    """Where a state tensor as large as `param` is between steps."""
    is_large = param.numel() * dtype.itemsize >= SMALLEST_IN_RAM
    return torch.device("cpu") if in_ram and is_large else param.device


def make_layout_compatible(config: OptimizerConfig, params: Iterable[nn.Parameter]) -> None:
    """Makes `params` contiguous if the optimizer needs it. Call it before `Runtime.prepare`.

    In its first step, bitsandbytes changes the layout of channels-last weights, but not that of their state.
    """
    if not facts_of_optimizer(config).takes_channels_last:
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
    """The state as (tensors keyed "parameter/key" or "group 0/key", plain data for JSON)."""
    tensors, data = parameter_state(optimizer, names)
    data["groups"] = [
        {key: without_tensors(group[key], f"group {number}/{key}", tensors) for key in _counted(optimizer, group)}
        for number, group in enumerate(optimizer.param_groups)
    ]
    return tensors, data


def parameter_state(optimizer: torch.optim.Optimizer, names: dict[Tensor, str]) -> tuple[dict[str, Tensor], dict]:
    """`optimizer_state` without that of the parameter groups."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for param, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{names[param]}/{key}"] = value
            elif value is not None:  # torch's SGD stores None if momentum is disabled
                numbers.setdefault(names[param], {})[key] = without_tensors(value, f"{names[param]}/{key}", tensors)
    return tensors, {"kind": type(optimizer).__name__, "state": numbers}


def _counted(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> list[str]:
    """The values of a group that the optimizer has counted or estimated.

    All others are the optimizer's arguments, or were given with the parameters: they come from the settings, which
    may have changed.
    """
    given = {"params", "lr", "initial_lr", "weight_decay", "name", MATRICES}
    return [key for key in group if key not in given | inspect.signature(type(optimizer)).parameters.keys()]


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
    optimizer: torch.optim.Optimizer,
    names: dict[Tensor, str],
    tensors: Mapping[str, Saved],
    numbers: dict,
    in_ram: bool = False,
) -> None:
    """Restores what `optimizer_state` returned, for the same parameters. in_ram: as for `load_parameter_state`."""
    tensors = dict(tensors)
    for group, saved in zip(optimizer.param_groups, numbers["groups"], strict=True):
        group.update(with_tensors(saved, tensors, group["params"][0].device))
    load_parameter_state(optimizer, names, tensors, numbers, in_ram)


def load_parameter_state(
    optimizer: torch.optim.Optimizer,
    names: dict[Tensor, str],
    tensors: Mapping[str, Saved],
    numbers: dict,
    in_ram: bool = False,
) -> None:
    """Restores what `parameter_state` returned, for the same parameters. in_ram: large tensors stay on the CPU."""
    tensors = dict(tensors)
    params = {name: param for param, name in names.items()}
    optimizer.state.clear()
    for name, values in numbers["state"].items():
        optimizer.state[params[name]].update(with_tensors(values, tensors, params[name].device))
    counts_on_device = {
        param: bool(group.get("fused") or group.get("capturable"))
        for group in optimizer.param_groups
        for param in group["params"]
    }
    for key, value in tensors.items():  # which `with_tensors` has left
        name, state_key = key.rsplit("/", 1)
        param = params[name]
        # a counter that is read on the host would cause a sync in each step, if it were on the device
        stays = state_key == "step" and not value.shape and not counts_on_device[param]
        optimizer.state[param][state_key] = value if stays else _laid_out_like(param, value, in_ram)


def without_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """`value` for JSON. Moves each tensor in it to `tensors` and leaves {"tensor": its name there}."""
    if isinstance(value, torch.Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, dict):
        return {key: without_tensors(item, f"{name}.{key}", tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_tensors(item, f"{name}.{number}", tensors) for number, item in enumerate(value)]
    return value


def with_tensors(value: Any, tensors: dict[str, Any], device: torch.device) -> Any:
    """The inverse of `without_tensors`, which takes the tensors out of `tensors`. Tuples have become lists."""
    if isinstance(value, dict):
        if value.keys() == {"tensor"}:
            return tensors.pop(value["tensor"]).to(device)
        return {key: with_tensors(item, tensors, device) for key, item in value.items()}
    if isinstance(value, list):
        return [with_tensors(item, tensors, device) for item in value]
    return value


def _laid_out_like(param: Tensor, value: Saved, in_ram: bool) -> Tensor:
    # Fused kernels ignore strides: a channels-last parameter with a contiguous moment gives silently wrong results.
    if value.shape == param.shape:
        laid_out = torch.empty_like(param, dtype=value.dtype, device=_state_device(param, value.dtype, in_ram))
        assign(laid_out, value)
        return laid_out
    assert not isinstance(value, DividedRows)  # only what is as large as its parameter is divided like it
    return value.to(param.device)
