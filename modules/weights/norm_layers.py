"""Norm layers with adapters: what is added to their weights and biases, and can be switched by PEFT.

In files of LyCORIS, which ComfyUI reads, a norm layer has `<name>.w_norm` and `<name>.b_norm`, without alpha or rank.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from modules.weights.peft_layers import LycorisConfig, LycorisLayer


def is_norm(layer: nn.Module) -> bool:
    """Whether the layer normalizes and has a weight for each channel: layer, group and RMS norms."""
    weight = getattr(layer, "weight", None)
    return "Norm" in type(layer).__name__ and isinstance(weight, Tensor) and weight.dim() == 1


def add_norm_adapters(module: Any, paths: Iterable[str], adapter: str) -> None:
    """Gives norm layers of `module`, by name, such adapters, which at first change nothing.

    module: a model of diffusers or transformers, whose other layers may have an adapter of this name. Norm layers that
    have it keep it.
    """
    for path in paths:
        parent, _, name = path.rpartition(".")
        holder = module.get_submodule(parent) if parent else module
        layer = getattr(holder, name)
        if not isinstance(layer, AdaptedNorm):
            layer = AdaptedNorm(layer)
            setattr(holder, name, layer)
        if adapter not in layer.w_norm:
            layer.update_layer(adapter, 1, 1.0)
            layer.set_adapter(adapter)
    module.peft_config = {adapter: LycorisConfig(), **getattr(module, "peft_config", {})}
    module._hf_peft_config_loaded = True  # as their add_adapter does


class AdaptedNorm(nn.Module, LycorisLayer):
    """A norm layer with adapters.

    w_norm, b_norm: adapter -> what is added to the weight and to the bias, if the layer has one, [channels].
    `scaling`: the strength, by which they are multiplied.
    """

    adapter_layer_names = ("w_norm", "b_norm")

    def __init__(self, base_layer: nn.Module):
        super().__init__()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Unsupported layer type")  # whose features are not used here
            LycorisLayer.__init__(self, base_layer)
        self.w_norm, self.b_norm = nn.ParameterDict(), nn.ParameterDict()

    @property
    def weight(self) -> Tensor:
        """That of the layer itself, whose dtype models ask for."""
        return cast("Tensor", self.get_base_layer().weight)

    @property
    def _available_adapters(self) -> set[str]:
        return {*self.w_norm}

    def update_layer(self, adapter_name: str, r: int, alpha: float, **kwargs: Any) -> None:
        self.r[adapter_name], self.alpha[adapter_name] = r, alpha
        self.scaling[adapter_name] = alpha / r
        self.create_adapter_parameters(adapter_name, r)

    def create_adapter_parameters(self, adapter_name: str, r: int, **kwargs: Any) -> None:
        for own, values in zip((self.w_norm, self.b_norm), self._own_values(), strict=True):
            if values is not None:
                dtype = torch.promote_types(values.dtype, torch.float32)
                own[adapter_name] = nn.Parameter(torch.zeros(len(values), device=values.device, dtype=dtype))

    def reset_adapter_parameters(self, adapter_name: str) -> None:
        for own in (self.w_norm, self.b_norm):
            if adapter_name in own:
                nn.init.zeros_(own[adapter_name])

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        active = [name for name in self.active_adapters if name in self.w_norm]
        if self.disable_adapters or self.merged or not active:
            return self.base_layer(x, *args, **kwargs)
        changed = {}
        for name, own, values in zip(("weight", "bias"), (self.w_norm, self.b_norm), self._own_values(), strict=True):
            if values is not None:
                total = values + sum(own[adapter] * self.scaling[adapter] for adapter in active)
                # autocast computes norms in float32; elsewhere they want the dtype that the layer has
                changed[name] = total if torch.is_autocast_enabled(x.device.type) else total.to(values.dtype)
        on_cpu = x.device.type == "cpu" and not torch.compiler.is_compiling()
        if on_cpu and torch.is_grad_enabled() and not x.requires_grad:
            # where only the weights want a gradient, the group norm of torch 2.13 crashes on channels-last inputs
            x = x.detach().requires_grad_()
        return torch.func.functional_call(self.get_base_layer(), changed, (x, *args), kwargs)

    def get_delta_weight(self, adapter_name: str, *, apply_rank_dropout: bool = False) -> Tensor:
        """What the adapter adds to the weight, [channels]."""
        return self.w_norm[adapter_name] * self.scaling[adapter_name]

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        merged_before = len(self.merged_adapters)
        super().merge(safe_merge, adapter_names)
        for adapter in self.merged_adapters[merged_before:]:
            self._add_to_bias(adapter, 1)

    def unmerge(self) -> None:
        for adapter in self.merged_adapters:
            self._add_to_bias(adapter, -1)
        super().unmerge()

    def _add_to_bias(self, adapter: str, sign: int) -> None:
        if adapter in self.b_norm:
            cast("Tensor", self.get_base_layer().bias).data += sign * self.b_norm[adapter] * self.scaling[adapter]

    def _own_values(self) -> tuple[Tensor, Tensor | None]:
        """The weight and the bias of the layer itself."""
        return self.weight, cast("Tensor | None", getattr(self.get_base_layer(), "bias", None))

    def _get_delta_activations(self, adapter_name: str, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        own = {"weight": self.w_norm, "bias": self.b_norm}
        values = {
            name: held[adapter_name] * self.scaling[adapter_name] for name, held in own.items() if adapter_name in held
        }
        return torch.func.functional_call(self.get_base_layer(), values, (x, *args), kwargs)
