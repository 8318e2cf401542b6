"""Quantizes the frozen components of a base model while they are moved to the device."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

    from modules.config.ModelConfig import ModelConfig
    from modules.families.Family import Family


def quantization_of(family: Family, component: str, config: ModelConfig) -> str:
    """The quantization that the settings choose for a component; "none" for those that are never quantized."""
    if component in (*family.denoisers, *family.guidance_denoisers):
        return config.denoiser_quantization
    return config.text_encoder_quantization if component in family.text.encoders else "none"


def quantizable_layers(family: Family, component: str, module: nn.Module) -> list[str]:
    """The names of the linear layers that are quantized: those of the blocks, if the family names the component's
    blocks, else all. It leaves out `family.unquantized`, tied weights, and layers that the libraries keep in another
    precision than the component, because their results would overflow in float16.
    """
    from torch import nn

    described = family.denoisers[0] if component in family.guidance_denoisers else component
    blocks = family.lora_blocks.get(described, ("",))
    left_out = set(family.unquantized.get(component, ()))
    owners = Counter(id(part.weight) for part in module.modules() if hasattr(part, "weight"))
    own_dtype = module.dtype  # diffusers looks for it in all layers each time
    return [
        name
        for name, layer in module.named_modules()
        if type(layer) is nn.Linear  # subclasses may be used in other ways than by calling them
        and name.startswith(blocks)
        and left_out.isdisjoint(name.split("."))
        and owners[id(layer.weight)] == 1
        and layer.weight.dtype == own_dtype
    ]


def quantize_layers(
    family: Family,
    component: str,
    module: nn.Module,
    quantization: str,
    device: torch.device,
    on_cpu: tuple[str, ...] = (),
) -> None:
    """Replaces the layers by quantized ones on `device`, one at a time: the device never holds the unquantized model.

    The other layers stay where they are. on_cpu: starts of the names of layers that are on the CPU afterwards.
    """
    from torch import nn

    from modules.layers.QuantizedLinear import QuantizedLinear
    from modules.weights.deferred_casts import compute

    for name in quantizable_layers(family, component, module):
        layer = module.get_submodule(name)
        assert isinstance(layer, nn.Linear)  # as `quantizable_layers` says
        compute(layer)
        quantized = QuantizedLinear.of(layer, quantization, device).eval()
        module.set_submodule(name, quantized.cpu() if name.startswith(on_cpu) else quantized)
