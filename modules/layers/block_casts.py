"""Layers that train in float32 and compute in the precision of autocast: the weights of a block are cast at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from modules.layers.LowCopies import HasWeights, LowCopies, Weights, share_copies


def cast_by_block(module: nn.Module) -> None:
    """Lets linear layers and convolutions in `module` cast their weights with those of their block.

    What they compute is the same to the bit. Subclasses stay as they are: they may use their weights in other ways.
    """
    layers: dict[str, Any] = {path: layer for path, layer in module.named_modules() if type(layer) in _KINDS}
    for layer in layers.values():
        layer.__class__ = _KINDS[type(layer)]
    share_copies(layers)


class _Linear(nn.Linear):
    copies: LowCopies
    block: str

    def forward(self, input: Tensor) -> Tensor:
        low = _low_weights(self, input)
        return super().forward(input) if low is None else nn.functional.linear(input, *low)

    def weights_to_cast(self) -> Weights | None:
        return _weights_of(self)


class _Conv2d(nn.Conv2d):
    copies: LowCopies
    block: str

    def forward(self, input: Tensor) -> Tensor:
        low = _low_weights(self, input)
        return super().forward(input) if low is None else self._conv_forward(input, low[0], *(low[1:] or (None,)))

    def weights_to_cast(self) -> Weights | None:
        return _weights_of(self)


_KINDS: dict[type, type] = {nn.Linear: _Linear, nn.Conv2d: _Conv2d}


def _weights_of(layer: nn.Module) -> Weights | None:
    """Those that autocast would cast; None where some do not train, which it casts without keeping copies."""
    weights = tuple(weight for weight in layer._parameters.values() if weight is not None)
    return weights if all(weight.requires_grad and weight.dtype == torch.float32 for weight in weights) else None


def _low_weights(layer: HasWeights, values: Tensor) -> Weights | None:
    device = values.device.type
    if not torch.is_grad_enabled() or not torch.is_autocast_enabled(device) or torch.compiler.is_compiling():
        return None
    weights = layer.weights_to_cast()
    return weights and layer.copies.of(weights, layer.block, torch.get_autocast_dtype(device))
