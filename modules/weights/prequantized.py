"""Reads components that were saved quantized by bitsandbytes, as diffusers and transformers write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.weights.safe import load_tensors

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from modules.layers.QuantizedLinear import QuantizedLinear
    from modules.weights.libraries import Model

_PACKED = ".quant_state.bitsandbytes__nf4"  # behind the name of a weight in nf4
_ROW_SCALES = "SCB"  # beside a weight in int8
_INT8_MAX = 127


def stored_quantization(folder: Path) -> str:
    """The format in which the weights of a component are stored: "none", "int8" or "nf4".

    Raises ValueError for a format that can't be read. folder: of the component.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "none"  # not a model, or damaged, which loading reports
    settings = config.get("quantization_config") if isinstance(config, dict) else None
    if not settings:
        return "none"
    if not isinstance(settings, dict):
        raise ValueError("its quantization_config is not an object")
    method = settings.get("quant_method", "an unknown method")
    if method == "bitsandbytes" and settings.get("load_in_8bit"):
        return "int8"
    if method == "bitsandbytes" and settings.get("bnb_4bit_quant_type") == "nf4":
        return "nf4"
    raise ValueError(f"it is quantized by {method} in a format other than int8 and nf4 of bitsandbytes")


def load_prequantized(component_class: type[Any], folder: Path, dtype: torch.dtype) -> Model:
    """The component with a QuantizedLinear for each quantized layer, and the others in `dtype`.

    Raises ValueError if the files don't fit the component.
    """
    import torch
    from torch import nn
    from transformers import PreTrainedModel

    module = _empty(component_class, folder)
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_tensors(file)
    for name, layer in list(module.named_modules()):
        if not isinstance(layer, nn.Linear):
            continue
        own = {key: tensors[key] for key in tensors if key.startswith(f"{name}.")}
        if f"{name}.weight{_PACKED}" in own or f"{name}.{_ROW_SCALES}" in own:
            parts = {key.removeprefix(f"{name}."): tensor for key, tensor in own.items()}
            module.set_submodule(name, _layer(layer, parts, dtype))
            for key in own:
                del tensors[key]
    exact = set(getattr(module, "_keep_in_fp32_modules", None) or ()) if dtype == torch.float16 else set()
    plain = {
        name: value.to(dtype if exact.isdisjoint(name.split(".")) else torch.float32) for name, value in tensors.items()
    }
    # assign: the parameters are on the meta device
    unknown = module.load_state_dict(plain, strict=False, assign=True).unexpected_keys
    if isinstance(module, PreTrainedModel):
        module.tie_weights()
    lacking = [name for name, value in module.named_parameters() if value.is_meta]
    if lacking or unknown:
        raise ValueError(f"its weights lack {lacking[0]}" if lacking else f"its weights have an unknown {unknown[0]}")
    return module


def _empty(component_class: type[Any], folder: Path) -> Model:
    """The component without weights; its buffers, which are computed and not stored, have values."""
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):
        if hasattr(component_class, "load_config"):  # of diffusers
            config = component_class.load_config(folder)
            return component_class.from_config({k: v for k, v in config.items() if k != "quantization_config"})
        config = component_class.config_class.from_pretrained(folder)
        del config.quantization_config
        return component_class(config)


def _layer(layer: nn.Linear, parts: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedLinear:
    """The layer from its tensors: weight, bias, and what bitsandbytes stores beside the weight."""
    import torch

    from modules.layers.quantized_formats import BLOCK
    from modules.layers.QuantizedLinear import QuantizedLinear

    shape = layer.out_features, layer.in_features
    bias = parts["bias"].to(dtype) if "bias" in parts else None
    weight = parts["weight"]
    if _ROW_SCALES in parts:
        scale = parts[_ROW_SCALES].float().reshape(-1, 1) / _INT8_MAX
        return QuantizedLinear(shape, "int8", weight, scale, bias, dtype)
    import bitsandbytes

    stored: dict[str, Any] = {key.removeprefix("weight."): value for key, value in parts.items() if key != "bias"}
    del stored["weight"]
    state = bitsandbytes.functional.QuantState.from_dict(stored, weight.device)
    if state.blocksize != BLOCK or tuple(state.shape) != shape:
        raise ValueError(f"blocks of {state.blocksize} weights in a layer {tuple(state.shape)} can't be read")
    scale = state.absmax
    if state.nested:  # "double quantization": the scales are quantized, too
        scale = bitsandbytes.functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
    return QuantizedLinear(shape, "nf4", weight.view(torch.int8).reshape(-1, 1), scale.float(), bias, dtype)
