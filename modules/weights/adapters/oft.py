"""OFT: adapters that rotate the outputs of a layer in blocks, as layers that PEFT's own switches turn on and off.

PEFT's OFT rotates the inputs instead, which no file that LyCORIS or ComfyUI reads can hold.

Source: Qiu et al. 2023, arXiv 2306.07280, "Controlling Text-to-Image Diffusion by Orthogonal Finetuning", with the
Cayley transform of LyCORIS's "diag-oft": the block R = (I + Q)(I - Q)^-1 of a skew-symmetric Q = S - S^T is orthogonal
for any S, and the identity for 0. Output m of a block becomes the sum over n of R[n, m] times output n.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from modules.weights.adapters.kinds import (
    ADAPTER,
    AdapterKind,
    LycorisKind,
    LycorisLayer,
    adaptable_shape,
    declare_adapter,
    fill,
    replace_layer,
)
from modules.weights.peft_layers import LycorisLayer as AdaptedLayer
from modules.weights.peft_layers import factorization

if TYPE_CHECKING:
    from modules.config.LoraConfig import LoraConfig
    from modules.weights.libraries import Model


class Oft(AdapterKind, LycorisKind):
    """A rank is the size of a block, at most: the next smaller one that divides the outputs evenly, and is no larger
    than their square root. In files, alpha is a limit of the rotation, and 0 is none."""

    name = "oft"

    def add_new(
        self, module: Model, targets: list[str], settings: LoraConfig, patterns: Mapping[str, Mapping[str, Any]]
    ) -> None:
        sizes = patterns.get("rank_pattern", {})
        _add(module, {path: sizes.get(path, settings.rank) for path in targets}, ADAPTER)

    def rank(self, parts: Mapping[str, Tensor]) -> int:
        return parts["oft_blocks"].shape[1]

    def scale(self, layer: LycorisLayer) -> float:
        return 1.0

    def fits(self, parts: Mapping[str, Tensor], module: nn.Module) -> bool:
        shape = adaptable_shape(module)
        return shape is not None and parts["oft_blocks"].shape[:2].numel() == shape[0]

    def read(self, parts: Mapping[str, Tensor], alpha: float | None) -> LycorisLayer:
        if alpha:
            raise ValueError(
                f"its OFT has a limit of the rotation (alpha {alpha:g}), which programs read differently; choose one "
                "without"
            )
        return LycorisLayer(self.name, parts, 0.0)

    def layer_of(self, adapted: Any, adapter: str) -> LycorisLayer:
        return LycorisLayer(self.name, super().layer_of(adapted, adapter).parts, 0.0)  # it trains with a scale of 1

    def add(
        self, module: Model, layers: Mapping[str, LycorisLayer], adapter: str, dtype: torch.dtype | None = None
    ) -> None:
        _add(module, {path: layer.rank or 1 for path, layer in layers.items()}, adapter)
        fill(module, layers, adapter, dtype)


def _add(module: Any, block_sizes: Mapping[str, int], adapter: str) -> None:
    """Adds adapters that at first change nothing. block_sizes: the largest that is wanted, by the path of the layer."""
    for path, size in block_sizes.items():
        layer = replace_layer(module, path, OrthogonalLayer)
        layer.update_layer(adapter, size, size)
        layer.set_adapter(adapter)
    declare_adapter(module, adapter)


class OrthogonalLayer(nn.Module, AdaptedLayer):
    """A linear layer or convolution with OFT adapters.

    oft_blocks: adapter -> S, [blocks, size, size], of which only S - S^T matters. `scaling`: the strength, with which
    the outputs move towards the rotated ones.
    """

    adapter_layer_names = ("oft_blocks",)

    def __init__(self, base_layer: nn.Module):
        super().__init__()
        AdaptedLayer.__init__(self, base_layer)
        self.oft_blocks = nn.ParameterDict()

    @property
    def _available_adapters(self) -> set[str]:
        return {*self.oft_blocks}

    def update_layer(self, adapter_name: str, r: int, alpha: float, **kwargs: Any) -> None:
        self.r[adapter_name], self.alpha[adapter_name] = r, alpha
        self.scaling[adapter_name] = alpha / r
        self.create_adapter_parameters(adapter_name, r)

    def create_adapter_parameters(self, adapter_name: str, r: int, **kwargs: Any) -> None:
        size, count = factorization(cast("int", self.out_features), r)
        weight = cast("Tensor", self.get_base_layer().weight)
        self.oft_blocks[adapter_name] = nn.Parameter(torch.zeros(count, size, size, device=weight.device))

    def reset_adapter_parameters(self, adapter_name: str) -> None:
        nn.init.zeros_(self.oft_blocks[adapter_name])

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        output = self.base_layer(x, *args, **kwargs)
        if not self.disable_adapters:
            for adapter in self.active_adapters:
                if adapter in self._available_adapters:
                    output = output + self._turned(adapter, self._without_bias(output), self._axis)
        return output

    def get_delta_weight(self, adapter_name: str, *, apply_rank_dropout: bool = False) -> Tensor:
        """What the adapter adds to the weight, in its shape."""
        return self._turned(adapter_name, cast("Tensor", self.get_base_layer().weight), 0)

    def _get_delta_activations(self, adapter_name: str, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self._turned(adapter_name, self._without_bias(self.base_layer(x, *args, **kwargs)), self._axis)

    @property
    def _axis(self) -> int:
        """Of the outputs."""
        return 1 if isinstance(self.get_base_layer(), nn.Conv2d) else -1

    def _turned(self, adapter: str, values: Tensor, axis: int) -> Tensor:
        """What the rotation adds to `values`, which have the layer's outputs along `axis`."""
        blocks = self.oft_blocks[adapter]
        added = (_rotation(blocks) - _identity(blocks)) * self.scaling[adapter]
        parts = values.movedim(axis, -1).unflatten(-1, blocks.shape[:2])
        return torch.einsum("knm,...kn->...km", added.to(values.dtype), parts).flatten(-2).movedim(-1, axis)

    def _without_bias(self, output: Tensor) -> Tensor:
        bias = cast("Tensor | None", getattr(self.get_base_layer(), "bias", None))
        if bias is None:
            return output
        return output - (bias if self._axis == -1 else bias.view(-1, 1, 1)).to(output.dtype)


def _rotation(blocks: Tensor) -> Tensor:
    """[blocks, size, size], orthogonal, in the precision of `blocks`."""
    skew = blocks - blocks.transpose(1, 2)
    identity = _identity(blocks)
    # (I + Q) and (I - Q)^-1 commute; I - Q can always be inverted, and checking that would wait for the device
    return torch.linalg.solve_ex(identity - skew, identity + skew).result


def _identity(blocks: Tensor) -> Tensor:
    return torch.eye(blocks.shape[1], dtype=blocks.dtype, device=blocks.device)


KIND = Oft()
