"""LoHa (Hyeon-Woo et al. 2021, arXiv 2108.06098), which adds (w1_a @ w1_b) * (w2_a @ w2_b) * alpha / rank to a weight.

PEFT's layers compute it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from modules.weights.adapters.kinds import PeftKind, adaptable_shape

if TYPE_CHECKING:
    from peft import PeftConfig
    from torch import Tensor, nn

    from modules.config.LoraConfig import LoraConfig

_KERNELS = {"hada_t1", "hada_t2"}  # of convolutions, by a Tucker decomposition


class Loha(PeftKind):
    name = "loha"

    def config(self, **values: Any) -> PeftConfig:
        from peft import LoHaConfig

        return LoHaConfig(**values)

    def options(self, settings: LoraConfig) -> dict[str, Any]:
        return {"use_effective_conv2d": settings.tucker}

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


KIND = Loha()
