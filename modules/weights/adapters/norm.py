"""The adapters of norm layers, whose layers are in `norm_layers.py`. They stand beside adapters of any other kind."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from modules.weights.adapters.kinds import NORM, LycorisKind, LycorisLayer
from modules.weights.LoraSource import NORM_PARTS

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from modules.weights.libraries import Model


class Norm(LycorisKind):
    name = NORM

    @property
    def tensors(self) -> tuple[str, ...]:
        return NORM_PARTS

    def is_whole(self, parts: Collection[str]) -> bool:
        return set(parts) in (set(NORM_PARTS), set(NORM_PARTS[:1]))  # some norm layers have no bias

    def read(self, parts: Mapping[str, Tensor], alpha: float | None) -> LycorisLayer:
        return LycorisLayer(self.name, parts, None)

    def layer_of(self, adapted: Any, adapter: str) -> LycorisLayer:
        layer, scale = super().layer_of(adapted, adapter), float(adapted.scaling[adapter])
        return LycorisLayer(self.name, {name: tensor * scale for name, tensor in layer.parts.items()}, None)

    def fits(self, parts: Mapping[str, Tensor], module: nn.Module) -> bool:
        from modules.weights.norm_layers import AdaptedNorm, is_norm

        norm: Any = module.get_base_layer() if isinstance(module, AdaptedNorm) else module
        values = (norm.weight, getattr(norm, "bias", None)) if is_norm(norm) else (None, None)
        own = {part: of.shape for part, of in zip(NORM_PARTS, values, strict=True) if of is not None}
        return own == {part: tensor.shape for part, tensor in parts.items()}

    def add(
        self, module: Model, layers: Mapping[str, LycorisLayer], adapter: str, dtype: torch.dtype | None = None
    ) -> None:
        from torch import nn

        from modules.weights.norm_layers import add_norm_adapters

        add_norm_adapters(module, layers, adapter)
        for path, layer in layers.items():
            adapted: Any = module.get_submodule(path)
            for part, values in layer.parts.items():
                own = getattr(adapted, part)
                own[adapter] = nn.Parameter(values.to(own[adapter].device, dtype, copy=True))


KIND = Norm()
