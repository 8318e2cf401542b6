"""Leaves out ranks of LoRA layers, or whole layers, at random in training: kohya's rank and module dropout, DyLoRA."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from modules.weights.adapters.kinds import ADAPTER

if TYPE_CHECKING:
    from torch import Tensor, nn

    from modules.config.LoraConfig import LoraConfig


def add_dropout(module: nn.Module, config: LoraConfig) -> None:
    """Lets the LoRA layers of `module`, while they are in training mode, leave out what `config` says.

    Each sample, along the first axis of a layer's inputs, draws by itself, from torch's global generator. The ranks
    that are kept are divided by their expected share, as with all dropout; a layer without its adapter is as it was, as
    in stochastic depth (Huang et al. 2016, arXiv 1603.09382). Nested ranks are those of DyLoRA (Valipour et al. 2022,
    arXiv 2210.07558, without freezing those before the last): the first ones are kept, as many multiples of
    `nested_unit` as are drawn, without a scale, because a file that is cut to them has none.
    """
    from peft.tuners.lora import LoraLayer

    if config.rank_dropout or config.module_dropout or config.nested_unit:
        for layer in module.modules():
            if isinstance(layer, LoraLayer) and ADAPTER in layer.lora_A:
                _drop_outputs(layer.lora_A[ADAPTER], config)


def _drop_outputs(down: nn.Module, config: LoraConfig) -> None:
    of_ranks, of_layers, unit = config.rank_dropout, config.module_dropout, config.nested_unit
    axis = 1 if isinstance(down, torch.nn.Conv2d) else -1  # of the ranks

    def drop(down: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if not down.training:
            return output
        shape = [len(output), *[1] * (output.dim() - 1)]
        if of_layers:
            output = output * (torch.rand(shape, device=output.device) >= of_layers)
        if of_ranks:
            shape[axis] = output.shape[axis]
            output = output * (torch.rand(shape, device=output.device) >= of_ranks) / (1 - of_ranks)
        if unit:
            shape[axis] = 1
            rank = output.shape[axis]
            kept = unit + (torch.rand(shape, device=output.device) * math.ceil(rank / unit)).long() * unit
            positions = [1] * output.dim()
            positions[axis] = rank
            output = output * (torch.arange(rank, device=output.device).view(positions) < kept)
        return output

    down.register_forward_hook(drop)
