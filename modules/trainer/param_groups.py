"""The parameter groups of a run: of each trained component, with its learning rate, weight decay and last step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from modules.config.errors import ConfigError
from modules.trainer.optimizers import ParamGroup

if TYPE_CHECKING:
    from torch import nn

    from modules.config.PartConfig import PartConfig
    from modules.weights.BaseModel import BaseModel


def param_groups(
    base: BaseModel,
    parts: Mapping[str, PartConfig],
    steps_until: Callable[[float], int],
    total_steps: int,
    rate_factor: Callable[[str], float] = lambda name: 1.0,
) -> list[ParamGroup]:
    """The trainable parameters of the components in `parts`: one group per component and factor of its learning rate.

    steps_until: number of epochs -> that of the optimizer steps until then.
    rate_factor: name of a parameter in its component -> that factor.
    Raises ConfigError if all groups stop training before the end of the run.
    """
    groups = []
    for name, part in parts.items():
        params: dict[float, list[nn.Parameter]] = {}
        for key, param in base.module(name).named_parameters():
            if param.requires_grad:
                params.setdefault(rate_factor(key), []).append(param)
        last = _last_step(part, steps_until)
        for factor, alike in params.items():
            label = name if factor == 1 else f"{name}_x{factor:g}"
            groups.append(ParamGroup(label, alike, part.learning_rate, part.weight_decay, last, factor))
    last = max(total_steps if group.stops_after is None else group.stops_after for group in groups)
    if last < total_steps:
        raise ConfigError.at(
            "denoiser.stop_after",
            f"and text_encoder.stop_after leave nothing to train after step {last} of "
            f"{total_steps}: let a part train to the end, or set max_steps to {last}.",
        )
    return groups


def _last_step(part: PartConfig, steps_until: Callable[[float], int]) -> int | None:
    """The last optimizer step that trains a part; None if it trains to the end of the run."""
    if part.stop_unit == "never":
        return None
    return steps_until(part.stop_after) if part.stop_unit == "epochs" else math.ceil(part.stop_after)
