"""Quantizes the frozen components of a base model while they are moved to the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from modules.config.errors import UserError
from modules.config.quantizations import EIGHT_BITS

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from modules.config.ModelConfig import ModelConfig
    from modules.families.Family import Family
    from modules.layers.QuantizedLinear import QuantizedLinear
    from modules.weights.ScaledRows import ScaledRows

MILLION = 1_000_000


def quantization_of(family: Family, component: str, config: ModelConfig) -> str:
    """The quantization that the settings choose for a component; "none" for those that are never quantized."""
    if component in (*family.denoisers, *family.guidance_denoisers):
        return config.denoiser_quantization
    return config.text_encoder_quantization if component in family.text.encoders else "none"


def multiply_in_8_bits(module: nn.Module, config: ModelConfig, device: torch.device) -> None:
    """Lets the large quantized layers of a denoiser compute their products in 8 bits, if the settings say so.

    Which layers do depends on their size alone: the number of rows differs between ranks, and their losses would, too.
    Raises UserError if the device can't.
    """
    if config.quantized_matmul != "on":
        return
    from modules.layers.QuantizedLinear import QuantizedLinear

    check_matmul(config, device)
    for layer in module.modules():
        if isinstance(layer, QuantizedLinear) and layer.quantization in EIGHT_BITS:
            layer.in_8_bits = _is_for_8_bits(layer, config)


def _is_for_8_bits(layer: nn.Linear, config: ModelConfig) -> bool:
    """Whether a layer is large enough, and of sides that the kernels take."""
    from modules.layers.quantized_matmul import SIDE_STEP

    sides = layer.in_features, layer.out_features
    is_large = sides[0] * sides[1] >= config.quantized_matmul_size * MILLION
    return is_large and not any(side % SIDE_STEP for side in sides)


def rotation_of(family: Family, component: str, layer: nn.Linear, config: ModelConfig) -> int:
    """The size of the groups in which the settings say that a layer of a component is rotated; 0 if it is not.

    Only layers that multiply in 8 bits are: rotating costs time, and others don't round their inputs.
    """
    from modules.layers.hadamard import group_size

    is_denoiser = component in (*family.denoisers, *family.guidance_denoisers)
    is_on = config.quantized_matmul == "on" and config.quantized_matmul_rotation
    return group_size(layer.in_features) if is_on and is_denoiser and _is_for_8_bits(layer, config) else 0


def check_matmul(config: ModelConfig, device: torch.device) -> None:
    """Raises UserError if the settings ask for products in 8 bits that the device can't compute."""
    if config.quantized_matmul != "on":
        return
    from modules.layers.quantized_matmul import matmul_problem

    if reason := matmul_problem(device, config.denoiser_quantization):
        raise UserError(
            f"model.quantized_matmul 'on' with denoiser_quantization {config.denoiser_quantization}: it {reason}; set "
            "model.quantized_matmul to off.",
            "model.quantized_matmul",
        )


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


class Wanted(NamedTuple):
    """Of a component: its family and name, and the settings that say how its layers are to be held, if any do."""

    family: Family
    name: str
    config: ModelConfig | None

    @property
    def quantization(self) -> str:
        return quantization_of(self.family, self.name, self.config) if self.config else "none"

    def rotations(self, component: Any, dtype: torch.dtype) -> dict[str, int]:
        """Those of the layers that are to be quantized; without those that diffusers keeps in float32."""
        import torch

        if self.config is None:
            return {}
        exact = set() if dtype == torch.float32 else set(component._keep_in_fp32_modules or ())
        return {
            name: rotation_of(self.family, self.name, component.get_submodule(name), self.config)
            for name in quantizable_layers(self.family, self.name, component)
            if exact.isdisjoint(name.split("."))
        }


def put_scaled_rows(
    module: nn.Module, tensors: dict[str, Tensor], rotations: Mapping[str, int], quantization: str
) -> None:
    """Puts a QuantizedLinear in place of each of these layers whose weight is `ScaledRows`, and takes its tensors out
    of `tensors`; what else is ScaledRows there gets values, and so do rows that are to be rotated and are not, which
    are then quantized anew.

    rotations: name of a layer -> as `rotation_of` gives it. quantization: the format of the rows, whose dtype is that
    of the module.
    """
    from modules.weights.ScaledRows import ScaledRows

    for name, rows in list(tensors.items()):
        if not isinstance(rows, ScaledRows):
            continue
        layer_name = name.removesuffix(".weight")
        wanted = rotations.get(layer_name)
        if wanted is None or (wanted and not rows.rotation):
            tensors[name] = rows.values()
            continue
        layer = module.get_submodule(layer_name)
        bias = tensors.pop(f"{layer_name}.bias").to(rows.dtype) if layer.bias is not None else None
        del tensors[name]
        module.set_submodule(layer_name, layer_of_rows(rows, bias, quantization))


def layer_of_rows(rows: ScaledRows, bias: Tensor | None, quantization: str) -> QuantizedLinear:
    """A layer with these codes and scales, bit for bit. quantization: their format."""
    import torch

    from modules.layers.QuantizedLinear import QuantizedLinear

    codes = rows.codes.contiguous().view(torch.int8)
    shape = len(codes), codes.shape[1]
    return QuantizedLinear(shape, quantization, codes, rows.scale, bias, rows.dtype, rows.rotation)


def quantize_layers(
    family: Family,
    component: str,
    module: nn.Module,
    config: ModelConfig,
    layers: Iterable[str],
    device: torch.device,
    on_cpu: bool = False,
) -> None:
    """Replaces layers by ones quantized on `device`, one at a time: the device never holds the unquantized model.

    layers: of the `quantizable_layers`, by name. config: says how they are quantized. on_cpu: whether they are on the
    CPU afterwards.
    """
    from torch import nn

    from modules.layers.QuantizedLinear import QuantizedLinear
    from modules.weights.deferred_casts import compute

    quantization = quantization_of(family, component, config)
    for name in layers:
        layer = module.get_submodule(name)
        assert isinstance(layer, nn.Linear)  # as `quantizable_layers` says
        compute(layer)
        rotation = rotation_of(family, component, layer, config)
        quantized = QuantizedLinear.of(layer, quantization, device, rotation).eval()
        module.set_submodule(name, quantized.cpu() if on_cpu else quantized)
