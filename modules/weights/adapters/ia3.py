"""IA3: adapters that scale the outputs or the inputs of a layer, channel by channel, and can be switched by PEFT.

PEFT's own IA3 belongs to a wrapper around the whole model, which diffusers' models are not loaded with.

Source: Liu et al. 2022, arXiv 2205.05638, "Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than
In-Context Learning", section 3.3; a channel is multiplied by 1 + its weight, which starts at 0, as in LyCORIS's "ia3".
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
    replace_layer,
)
from modules.weights.peft_layers import LycorisLayer as AdaptedLayer

if TYPE_CHECKING:
    from modules.config.LoraConfig import LoraConfig
    from modules.weights.libraries import Model


class Ia3(AdapterKind, LycorisKind):
    """Without rank and alpha."""

    name = "ia3"
    parameter = "ia3_weight"

    def add_new(
        self, module: Model, targets: list[str], settings: LoraConfig, patterns: Mapping[str, Mapping[str, Any]]
    ) -> None:
        _add(module, dict.fromkeys(targets, settings.ia3_on_input), ADAPTER)

    def fits(self, parts: Mapping[str, Tensor], module: nn.Module) -> bool:
        shape = adaptable_shape(module)
        return shape is not None and parts["weight"].numel() == shape[1 if parts["on_input"] else 0]

    def read(self, parts: Mapping[str, Tensor], alpha: float | None) -> LycorisLayer:
        return LycorisLayer(self.name, parts, None)

    def layer_of(self, adapted: Any, adapter: str) -> LycorisLayer:
        weight = (adapted.ia3_weight[adapter] * adapted.scaling[adapter]).detach()
        if isinstance(adapted.get_base_layer(), nn.Conv2d):
            weight = weight.view(1, -1, 1, 1)  # as LyCORIS shapes it
        on_input = torch.tensor(int(adapted.on_input[adapter]))
        return LycorisLayer(self.name, {"weight": weight, "on_input": on_input}, None)

    def add(
        self, module: Model, layers: Mapping[str, LycorisLayer], adapter: str, dtype: torch.dtype | None = None
    ) -> None:
        _add(module, {path: bool(layer.parts["on_input"]) for path, layer in layers.items()}, adapter)
        for path, layer in layers.items():
            scaled: Any = module.get_submodule(path)
            values = layer.parts["weight"].flatten().to(scaled.ia3_weight[adapter].device, dtype)
            scaled.ia3_weight[adapter] = nn.Parameter(values.clone())


def _add(module: Any, on_inputs: Mapping[str, bool], adapter: str) -> None:
    """Adds adapters that at first change nothing. on_inputs: layer -> whether its inputs are scaled, or its outputs."""
    for path, on_input in on_inputs.items():
        layer = replace_layer(module, path, ScaledLayer)
        layer.on_input[adapter] = on_input
        layer.update_layer(adapter, 1, 1.0)
        layer.set_adapter(adapter)
    declare_adapter(module, adapter)


class ScaledLayer(nn.Module, AdaptedLayer):
    """A linear layer or convolution with IA3 adapters.

    ia3_weight: adapter -> what is added to 1, [channels]. on_input: adapter -> whether they are those of the inputs.
    `scaling`: the strength, by which the weights are multiplied.
    """

    adapter_layer_names = ("ia3_weight",)

    def __init__(self, base_layer: nn.Module):
        super().__init__()
        AdaptedLayer.__init__(self, base_layer)
        self.ia3_weight = nn.ParameterDict()
        self.on_input: dict[str, bool] = {}

    @property
    def _available_adapters(self) -> set[str]:
        return {*self.ia3_weight}

    def update_layer(self, adapter_name: str, r: int, alpha: float, **kwargs: Any) -> None:
        self.r[adapter_name], self.alpha[adapter_name] = r, alpha
        self.scaling[adapter_name] = alpha / r
        self.create_adapter_parameters(adapter_name, r)

    def create_adapter_parameters(self, adapter_name: str, r: int, **kwargs: Any) -> None:
        channels = self.in_features if self.on_input[adapter_name] else self.out_features
        weight = cast("Tensor", self.get_base_layer().weight)
        self.ia3_weight[adapter_name] = nn.Parameter(torch.zeros(cast("int", channels), device=weight.device))

    def reset_adapter_parameters(self, adapter_name: str) -> None:
        nn.init.zeros_(self.ia3_weight[adapter_name])

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        active = [] if self.disable_adapters else [name for name in self.active_adapters if name in self.ia3_weight]
        for adapter in active:
            if self.on_input[adapter]:
                x = x * (1 + self._along_channels(adapter)).to(x.dtype)
        output = self.base_layer(x, *args, **kwargs)
        for adapter in active:
            if not self.on_input[adapter]:
                output = output + self._without_bias(output) * self._along_channels(adapter).to(output.dtype)
        return output

    def get_delta_weight(self, adapter_name: str, *, apply_rank_dropout: bool = False) -> Tensor:
        """What the adapter adds to the weight, in its shape."""
        weight = cast("Tensor", self.get_base_layer().weight)
        axis = 1 if self.on_input[adapter_name] else 0
        shape = [-1 if position == axis else 1 for position in range(weight.dim())]
        return weight * (self.ia3_weight[adapter_name] * self.scaling[adapter_name]).view(shape)

    def _get_delta_activations(self, adapter_name: str, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        scale = self._along_channels(adapter_name)
        if self.on_input[adapter_name]:
            return self._without_bias(self.base_layer(x * scale.to(x.dtype), *args, **kwargs))
        return self._without_bias(self.base_layer(x, *args, **kwargs)) * scale

    def _along_channels(self, adapter: str) -> Tensor:
        """The weights times the strength, to be multiplied with activations."""
        weights = self.ia3_weight[adapter] * self.scaling[adapter]
        return weights.view(-1, 1, 1) if isinstance(self.get_base_layer(), nn.Conv2d) else weights

    def _without_bias(self, output: Tensor) -> Tensor:
        layer = self.get_base_layer()
        bias = cast("Tensor | None", getattr(layer, "bias", None))
        if bias is None:
            return output
        return output - (bias.view(-1, 1, 1) if isinstance(layer, nn.Conv2d) else bias).to(output.dtype)


KIND = Ia3()
