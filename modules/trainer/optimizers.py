"""Optimizers by name, from torch and well-kept packages, and their state as tensors and plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from modules.trainer.TrainingError import TrainingError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from modules.config.OptimizerConfig import OptimizerConfig

FOUND_BY_PRODIGY = ("d", "d_max", "d_hat", "d_numerator", "d_denom", "k")


@dataclass(frozen=True)
class ParamGroup:
    """Parameters that share a learning rate (None: the optimizer's)."""

    name: str
    params: list[nn.Parameter]
    learning_rate: float | None = None


def create_optimizer(config: OptimizerConfig, groups: list[ParamGroup], learning_rate_factor: float = 1.0):
    """The optimizer of `config` over `groups`; each group keeps its base rate under "initial_lr"."""
    param_groups = []
    for group in groups:
        rate = (group.learning_rate or config.learning_rate) * learning_rate_factor
        param_groups.append({"params": group.params, "lr": rate, "initial_lr": rate, "name": group.name})
    common = {"weight_decay": config.weight_decay}
    if config.name == "adamw":
        betas = (config.beta1, config.beta2)
        return torch.optim.AdamW(param_groups, betas=betas, eps=config.eps, fused=True, **common)
    if config.name == "adafactor":
        return torch.optim.Adafactor(
            param_groups, beta2_decay=config.adafactor_beta2_decay, d=config.adafactor_clip_threshold, **common
        )
    from prodigyopt import Prodigy

    return Prodigy(
        param_groups,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        d_coef=config.prodigy_d_coef,
        use_bias_correction=True,
        safeguard_warmup=True,
        **common,
    )


def optimizer_state(optimizer: torch.optim.Optimizer, names: dict[Tensor, str]) -> tuple[dict[str, Tensor], dict]:
    """The state as (tensors keyed "parameter/key", plain numbers for JSON)."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for param, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{names[param]}/{key}"] = value
            else:
                numbers.setdefault(names[param], {})[key] = value
    # only what the optimizer has found out by itself: rates and other settings come from the settings, changed or not
    groups = [{key: group[key] for key in FOUND_BY_PRODIGY if key in group} for group in optimizer.param_groups]
    return tensors, {"kind": type(optimizer).__name__, "groups": groups, "state": numbers}


def check_same_optimizer(optimizer: torch.optim.Optimizer, numbers: dict) -> None:
    """Raises TrainingError where what `optimizer_state` gave is of another optimizer."""
    if numbers["kind"] != type(optimizer).__name__:
        raise TrainingError(
            f"The backup is of the optimizer {numbers['kind']} and optimizer.name asks for "
            f"{type(optimizer).__name__}: resume with the optimizer of the run it is from."
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
