"""LoKr (Yeh et al. 2023, arXiv 2309.14859), which adds the Kronecker product of w1 and w2 to a weight.

Each of the two may be the product of matrices of a rank; unless both are whole, the sum is multiplied by alpha / rank.
PEFT's layers compute it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from modules.weights.adapters.kinds import LycorisLayer, PeftKind, adaptable_shape

if TYPE_CHECKING:
    from peft import PeftConfig
    from torch import Tensor, nn

    from modules.config.LoraConfig import LoraConfig

_WITH_RANK = ("lokr_w1_b", "lokr_t2", "lokr_w2_b")  # their first axis is the rank; the first that is there counts
_FIRST = ({"lokr_w1"}, {"lokr_w1_a", "lokr_w1_b"})
_SECOND = ({"lokr_w2"}, {"lokr_w2_a", "lokr_w2_b"}, {"lokr_t2", "lokr_w2_a", "lokr_w2_b"})


class Lokr(PeftKind):
    name = "lokr"

    def config(self, **values: Any) -> PeftConfig:
        from peft import LoKrConfig

        return LoKrConfig(init_weights="lycoris", **values)

    def options(self, settings: LoraConfig) -> dict[str, Any]:
        return {
            "use_effective_conv2d": settings.tucker,
            "decompose_factor": settings.lokr_factor or -1,
            "decompose_both": settings.lokr_decompose_both,
        }

    def is_whole(self, parts: Collection[str]) -> bool:
        return any(set(parts) == first | second for first in _FIRST for second in _SECOND)

    def rank(self, parts: Mapping[str, Tensor]) -> int | None:
        return next((len(parts[name]) for name in _WITH_RANK if name in parts), None)

    def layer_of(self, adapted: Any, adapter: str) -> LycorisLayer:
        layer = super().layer_of(adapted, adapter)
        if layer.rank is not None:
            return layer
        # readers take no notice of the alpha of two whole matrices
        parts = {**layer.parts, "lokr_w1": layer.parts["lokr_w1"] * float(adapted.scaling[adapter])}
        return LycorisLayer(self.name, parts, 1.0)

    def fits(self, parts: Mapping[str, Tensor], module: nn.Module) -> bool:
        shape = adaptable_shape(module)
        if shape is None:
            return False
        w1 = parts["lokr_w1"].shape if "lokr_w1" in parts else (len(parts["lokr_w1_a"]), parts["lokr_w1_b"].shape[1])
        if "lokr_w2" in parts:
            w2 = len(parts["lokr_w2"]), parts["lokr_w2"][0].numel()
        elif "lokr_t2" in parts:
            w2 = parts["lokr_w2_a"].shape[1], parts["lokr_w2_b"].shape[1] * parts["lokr_t2"][0, 0].numel()
        else:
            w2 = len(parts["lokr_w2_a"]), parts["lokr_w2_b"].shape[1]
        return (w1[0] * w2[0], w1[1] * w2[1]) == (shape[0], shape[1:].numel())


KIND = Lokr()
