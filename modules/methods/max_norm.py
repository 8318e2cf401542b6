"""Limits the norm of what each adapter adds to its weight, without a device sync; kohya's `scale_weight_norms`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import torch

from modules.weights.adapters.kinds import ADAPTER

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer
    from peft.tuners.lycoris_utils import LycorisLayer
    from torch import Tensor, nn


class MaxNorm:
    """Scales the adapters in `modules` down to a Frobenius norm of at most `max_norm` each."""

    def __init__(self, modules: Iterable[nn.Module], max_norm: float):
        from peft.tuners.lora import LoraLayer
        from peft.tuners.lycoris_utils import LycorisLayer

        from modules.weights.norm_layers import AdaptedNorm

        kinds = (LoraLayer, LycorisLayer)
        layers = [layer for module in modules for layer in module.modules() if isinstance(layer, kinds)]
        layers = [layer for layer in layers if ADAPTER in layer.scaling and not isinstance(layer, AdaptedNorm)]
        self._layers = [(layer, _factors(layer)) for layer in layers]
        self._max_norm = max_norm

    @torch.no_grad()
    def ratios(self) -> Tensor:
        """float32[layers], or float64: the factors that bring the changes of the weights within the limit."""
        norms = torch.stack([_norm(layer, factors) for layer, factors in self._layers])
        return (self._max_norm / norms).clamp(max=1.0)

    @torch.no_grad()
    def apply(self, ratios: Tensor) -> None:
        """Multiplies what each layer's adapter adds by its ratio, in equal parts over its factors."""
        for ratio, (_, factors) in zip(ratios, self._layers, strict=True):
            # what an adapter adds is linear in each of its factors
            torch._foreach_mul_(factors, ratio ** (1 / len(factors)))


def _factors(layer: LoraLayer | LycorisLayer) -> list[Tensor]:
    from peft.tuners.lora import LoraLayer

    if isinstance(layer, LoraLayer):  # without DoRA's magnitude, which is no factor of the product
        return [cast("Tensor", half[ADAPTER].weight) for half in (layer.lora_A, layer.lora_B)]
    held = (getattr(layer, name) for name in layer.adapter_layer_names)
    return [values[ADAPTER] for values in held if ADAPTER in values]


def _norm(layer: LoraLayer | LycorisLayer, factors: list[Tensor]) -> Tensor:
    """The norm of what the adapter adds. Of a LoRA from r x r matrices: |B A|^2 = tr(B^T B A A^T)."""
    from peft.tuners.lora import LoraLayer

    if not isinstance(layer, LoraLayer):
        return layer.get_delta_weight(ADAPTER).norm()
    down, up = (factor.flatten(1) for factor in factors)
    squared = ((up.T @ up) * (down @ down.T)).sum()
    return squared.clamp(min=0).sqrt() * layer.scaling[ADAPTER]
