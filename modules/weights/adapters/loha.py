"""LoHa (Hyeon-Woo et al. 2021, arXiv 2108.06098), which adds (w1_a @ w1_b) * (w2_a @ w2_b) * alpha / rank to a weight.

PEFT's layers compute it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from modules.weights.adapters.kinds import (
    ADAPTER,
    AdapterKind,
    LycorisKind,
    LycorisLayer,
    adaptable_shape,
    fill,
    most_common_rank,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from modules.config.LoraConfig import LoraConfig
    from modules.weights.libraries import Model

_KERNELS = {"hada_t1", "hada_t2"}  # of convolutions, by a Tucker decomposition


class Loha(AdapterKind, LycorisKind):
    name = "loha"

    def add_new(
        self, module: Model, targets: list[str], settings: LoraConfig, patterns: Mapping[str, Mapping[str, Any]]
    ) -> None:
        options = {"use_effective_conv2d": settings.tucker, **patterns}
        _add(module, targets, ADAPTER, settings.rank, settings.alpha, options)

    def is_whole(self, parts: Collection[str]) -> bool:
        every = set(self.tensors)
        return set(parts) in (every, every - _KERNELS)

    def rank(self, parts: Mapping[str, Tensor]) -> int:
        return len(parts["hada_w1_b"])

    def fits(self, parts: Mapping[str, Tensor], module: nn.Module) -> bool:
        shape = adaptable_shape(module)
        if shape is None:
            return False
        is_tucker = "hada_t1" in parts
        out = parts["hada_w1_a"].shape[1 if is_tucker else 0]
        rest = parts["hada_w1_b"].shape[1] * (parts["hada_t1"][0, 0].numel() if is_tucker else 1)
        return (out, rest) == (shape[0], shape[1:].numel())

    def add(
        self, module: Model, layers: Mapping[str, LycorisLayer], adapter: str, dtype: torch.dtype | None = None
    ) -> None:
        rank = most_common_rank(layers)
        _add(module, list(layers), adapter, rank, rank, {})
        fill(module, layers, adapter, dtype)


def _add(module: Model, targets: list[str], adapter: str, rank: int, alpha: float, options: Mapping[str, Any]) -> None:
    from peft import LoHaConfig

    values: dict[str, Any] = {"r": rank, "alpha": alpha, "target_modules": targets, **options}
    module.add_adapter(LoHaConfig(**values), adapter_name=adapter)


KIND = Loha()
