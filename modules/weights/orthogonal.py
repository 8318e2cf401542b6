"""OFT: adapters that rotate the outputs of a layer in blocks, as layers that PEFT's own switches turn on and off.

PEFT's OFT rotates the inputs instead, which no file that LyCORIS or ComfyUI reads can hold.

Source: Qiu et al. 2023, arXiv 2306.07280, "Controlling Text-to-Image Diffusion by Orthogonal Finetuning", with the
Cayley transform of LyCORIS's "diag-oft": the block R = (I + Q)(I - Q)^-1 of a skew-symmetric Q = S - S^T is orthogonal
for any S, and the identity for 0. Output m of a block becomes the sum over n of R[n, m] times output n.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from modules.weights.peft_layers import LycorisConfig, LycorisLayer, factorization


def add_oft(module: Any, block_sizes: Mapping[str, int], adapter: str) -> None:
    """Replaces layers of `module`, by name, with ones that have such an adapter, which at first changes nothing.

    module: a model of diffusers or transformers. block_sizes: the largest that is wanted; a block has the next smaller
    size that divides the outputs evenly, and is no larger than their square root.
    """
    for path, size in block_sizes.items():
        parent, _, name = path.rpartition(".")
        holder = module.get_submodule(parent) if parent else module
        layer = getattr(holder, name)
        if not isinstance(layer, OrthogonalLayer):
            layer = OrthogonalLayer(layer)
            setattr(holder, name, layer)
        layer.update_layer(adapter, size, size)
        layer.set_adapter(adapter)
    module.peft_config = {**getattr(module, "peft_config", {}), adapter: LycorisConfig()}
    module._hf_peft_config_loaded = True  # as their add_adapter does


class OrthogonalLayer(nn.Module, LycorisLayer):
    """A linear layer or convolution with OFT adapters.

    oft_blocks: adapter -> S, [blocks, size, size], of which only S - S^T matters. `scaling`: the strength, with which
    the outputs move towards the rotated ones.
    """

    adapter_layer_names = ("oft_blocks",)

    def __init__(self, base_layer: nn.Module):
        super().__init__()
        LycorisLayer.__init__(self, base_layer)
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
