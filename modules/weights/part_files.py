"""Reads the tensors of one part from a single file: the file of ComfyUI that has it alone, or that of a whole model."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from modules.weights.gguf_files import gguf_tensors, is_gguf
from modules.weights.part_names import prefix_of
from modules.weights.safe import load_tensors, read_header, tensor_shapes
from modules.weights.vae_names import PREFIXES as VAE_PREFIXES

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_SCALES = (".scale_weight", ".weight_scale")  # of a float8 weight: ComfyUI's older and newer names
_NOT_WEIGHTS = (*_SCALES, ".scale_input", ".input_scale", ".comfy_quant", "scaled_fp8")
CHOOSE_FLOAT = "which can't be read; choose the file in bfloat16, float16 or float8"


def vae_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of the VAE in a file, which may be that of a whole model, without prefix."""
    names = tensor_shapes(read_header(path)).keys()
    prefix = next((start for start in VAE_PREFIXES if any(name.startswith(start) for name in names)), "")
    tensors = load_tensors(path, [name for name in names if name.startswith(prefix)])
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def denoiser_tensors(path: Path, dtype: torch.dtype, expected: Collection[str], inside: str = "") -> dict[str, Tensor]:
    """The tensors of the denoiser in a file, without prefix; float8 weights that have scales are multiplied by them.

    dtype: of these products; other tensors are as in the file, which may be GGUF. expected: the names of its weights in
    diffusers. inside: for a component that is in the file, too, what its names have behind the prefix.
    Raises ValueError for weights that are quantized in another way.
    """
    if is_gguf(path):
        found = gguf_tensors(path)
        prefix = prefix_of(found, expected) + inside
        return {name.removeprefix(prefix): tensor for name, tensor in found.items() if name.startswith(prefix)}
    names = tensor_shapes(read_header(path)).keys()
    prefix = prefix_of(names, expected) + inside
    own = [name for name in names if name.startswith(prefix)]
    tensors = {name.removeprefix(prefix): tensor for name, tensor in load_tensors(path, own).items()}
    weights = {name: tensor for name, tensor in tensors.items() if not name.endswith(_NOT_WEIGHTS)}
    for name in weights:
        layer = name.removesuffix(".weight")
        scale = next((tensors[layer + ending] for ending in _SCALES if layer + ending in tensors), None)
        if layer != name and scale is not None:
            weights[name] = _scaled(name, weights[name], scale).to(dtype)
    for name, tensor in weights.items():
        if name.endswith(".weight") and not tensor.is_floating_point():
            raise ValueError(f"its {name} is quantized to {_called(tensor)}, {CHOOSE_FLOAT}")
    return weights


def _scaled(name: str, weight: Tensor, scale: Tensor) -> Tensor:
    # a scale of the whole matrix, or of each row
    if weight.dtype.itemsize != 1 or not weight.is_floating_point() or scale.numel() not in (1, len(weight)):
        described = f"{_called(weight)} with scales of the shape {tuple(scale.shape)}"
        raise ValueError(f"its {name} is quantized to {described}, {CHOOSE_FLOAT}")
    return weight.float() * scale.float().reshape(-1, *[1] * (weight.dim() - 1))


def _called(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
