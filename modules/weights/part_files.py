"""Reads the tensors of one part from a single file: the file of ComfyUI that has it alone, or that of a whole model."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.weights.gguf_files import gguf_tensors, is_gguf
from modules.weights.part_names import found_inside, inner_name, prefix_of
from modules.weights.safe import METADATA, load_tensors, read_header, tensor_shapes
from modules.weights.vae_names import PREFIXES as VAE_PREFIXES

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_SCALES = (".scale_weight", ".weight_scale")  # of a float8 weight: ComfyUI's older and newer names
_QUANT = ".comfy_quant"  # how ComfyUI has quantized a layer, as JSON in bytes
_QUANT_METADATA = "_quantization_metadata"  # the same for all layers, in the metadata of a file
_NOT_WEIGHTS = (*_SCALES, ".scale_input", ".input_scale", _QUANT, "scaled_fp8")
_FORMATS = ("float8_e4m3fn", "float8_e5m2", "int8_tensorwise")
_CONVROT_SIZE = 256  # of groups, if a file does not say
_HELD = {"float8": "float8_e4m3fn", "int8": "int8_tensorwise"}  # format of QuantizedLinear -> ComfyUI's
CHOOSE_FLOAT = "which can't be read; choose the file in bfloat16, float16, float8 or int8_tensorwise"


def vae_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of the VAE in a file, which may be that of a whole model, without prefix."""
    names = tensor_shapes(read_header(path)).keys()
    prefix = next((start for start in VAE_PREFIXES if any(name.startswith(start) for name in names)), "")
    tensors = load_tensors(path, [name for name in names if name.startswith(prefix)])
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def denoiser_tensors(
    path: Path, dtype: torch.dtype, expected: Collection[str], quantization: str = "none"
) -> dict[str, Tensor]:
    """The tensors of the denoiser in a file, without prefix.

    dtype, quantization: as in `float_tensors`, for a file that is not GGUF. expected: the names of its weights in
    diffusers.
    Raises ValueError for weights that are quantized in a way that can't be read.
    """
    if is_gguf(path):
        found = gguf_tensors(path)
        return _behind(prefix_of(found, expected), found)
    return float_tensors(path, dtype, prefix_of(tensor_shapes(read_header(path)), expected), quantization)


def inner_tensors(path: Path, dtype: torch.dtype, component: str) -> dict[str, Tensor]:
    """The tensors of a component in INSIDE that are in a denoiser's file, in the names of diffusers.

    component: the name of its class. dtype, raises: as in `denoiser_tensors`.
    """
    quantized = gguf_tensors(path) if is_gguf(path) else None
    tensors: dict[str, Tensor] = {}
    for start in found_inside(quantized or tensor_shapes(read_header(path)), component):
        found = float_tensors(path, dtype, start) if quantized is None else _behind(start, quantized)
        inner = start.removeprefix(prefix_of([start], ()))
        tensors |= {inner_name(inner + name, component): tensor for name, tensor in found.items()}
    return tensors


def _behind(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def float_tensors(path: Path, dtype: torch.dtype, prefix: str = "", quantization: str = "none") -> dict[str, Tensor]:
    """The tensors of a file whose names have a prefix, without it; float8 and int8 weights times their scales.

    dtype: of these products; other tensors are as in the file. quantization: a format of QuantizedLinear in which
    matrices are to be held; those that are in it already are `ScaledRows`. Raises ValueError for weights that are
    quantized in another way.
    """
    header = read_header(path)
    names = tensor_shapes(header).keys()
    own = [name for name in names if name.startswith(prefix)]
    tensors = {name.removeprefix(prefix): tensor for name, tensor in load_tensors(path, own).items()}
    weights = {name: tensor for name, tensor in tensors.items() if not name.endswith(_NOT_WEIGHTS)}
    stored = _quantized_layers(header[METADATA], prefix)
    for name in weights:
        layer = name.removesuffix(".weight")
        scale = next((tensors[layer + ending] for ending in _SCALES if layer + ending in tensors), None)
        how = _json(bytes(tensors[layer + _QUANT].tolist())) if layer + _QUANT in tensors else stored.get(layer, {})
        if layer != name and (rows := _as_held(weights[name], scale, how, dtype, quantization)) is not None:
            weights[name] = rows
        elif layer != name and (scale is not None or how):
            weights[name] = _dequantized(name, weights[name], scale, how).to(dtype)
    for name, tensor in weights.items():
        if name.endswith(".weight") and not tensor.is_floating_point():
            raise ValueError(f"its {name} is quantized to {_called(tensor)}, {CHOOSE_FLOAT}")
    return weights


def _as_held(
    weight: Tensor, scale: Tensor | None, how: Mapping[str, Any], dtype: torch.dtype, quantization: str
) -> Tensor | None:
    """A matrix as it is in the file, if it is to be held in its format; else None."""
    import torch

    from modules.weights.ScaledRows import ScaledRows

    own = {torch.int8: "int8", torch.float8_e4m3fn: "float8"}.get(weight.dtype)
    if own is None or own != quantization or weight.dim() != 2:
        return None
    if how.get("format", _HELD[own]) != _HELD[own] or (own == "int8" and scale is None):
        return None
    scale = torch.ones(1) if scale is None else scale.float()  # float8 without scales
    rotation = _rotation(how)
    if scale.numel() not in (1, len(weight)) or not _is_rotated_in(weight, rotation):
        return None
    return ScaledRows(weight, scale.reshape(-1, 1).expand(len(weight), 1).contiguous(), dtype, rotation)


def _quantized_layers(metadata: Mapping[str, str], prefix: str) -> dict[str, dict[str, Any]]:
    """Layer, without prefix -> how it is quantized, as the metadata of a file say."""
    layers = _json(metadata.get(_QUANT_METADATA, "{}")).get("layers", {})
    named = layers.items() if isinstance(layers, dict) else ()
    return {name.removeprefix(prefix): how for name, how in named if isinstance(how, dict)}


def _json(text: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError("what it says of its quantization is not JSON") from error
    return value if isinstance(value, dict) else {}


def _dequantized(name: str, weight: Tensor, scale: Tensor | None, how: Mapping[str, Any]) -> Tensor:
    """The values of a weight with a scale of the whole matrix, or of each row. how: as ComfyUI describes it."""
    import torch

    from modules.layers.hadamard import rotate

    scales = "without scales" if scale is None else f"with scales of the shape {tuple(scale.shape)}"
    called = how.get("format", _called(weight))
    is_float8 = weight.dtype.itemsize == 1 and weight.is_floating_point()
    known = (is_float8 or weight.dtype == torch.int8) and how.get("format", _FORMATS[0]) in _FORMATS
    if not known or scale is None or scale.numel() not in (1, len(weight)):
        raise ValueError(f"its {name} is quantized to {called} {scales}, {CHOOSE_FLOAT}")
    values = weight.float() * scale.float().reshape(-1, *[1] * (weight.dim() - 1))
    rotation = _rotation(how)
    if not _is_rotated_in(weight, rotation):
        raise ValueError(f"its {name} is quantized to {called} and rotated in groups of {rotation}, {CHOOSE_FLOAT}")
    return rotate(values, rotation)


def _rotation(how: Mapping[str, Any]) -> Any:
    """The size of the groups in which ComfyUI's "convrot" has rotated the rows of a weight; 0 if it has not."""
    return how.get("convrot_groupsize", _CONVROT_SIZE) if how.get("convrot") else 0


def _is_rotated_in(weight: Tensor, size: Any) -> bool:
    """Whether a weight can be rotated in groups of a size that a file names."""
    from modules.layers.hadamard import GROUP_SIZES

    return size == 0 or (weight.dim() == 2 and size in GROUP_SIZES and weight.shape[1] % size == 0)


def _called(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
