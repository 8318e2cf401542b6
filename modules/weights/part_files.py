"""Reads the tensors of one part from a single file: the file of ComfyUI that has it alone, or that of a whole model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.weights.gguf_files import gguf_tensors, is_gguf
from modules.weights.safe import load_tensors, read_header, tensor_shapes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Before the names of a denoiser: in whole models and ComfyUI's own files, in LoRA tools' exports, in NVIDIA's files.
PREFIXES = ("model.diffusion_model.", "diffusion_model.", "net.")
_SCALES = (".scale_weight", ".weight_scale")  # of a float8 weight: ComfyUI's older and newer names
_NOT_WEIGHTS = (*_SCALES, ".scale_input", ".input_scale", ".comfy_quant", "scaled_fp8")
# Names that the converters of diffusers 0.42 leave as they are: the positions of Wan 2.1 FLF2V's two images.
_LEFT_OUT = {"img_emb.emb_pos": "condition_embedder.image_embedder.pos_embed"}
CHOOSE_FLOAT = "which can't be read; choose the file in bfloat16, float16 or float8"


def denoiser_tensors(path: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors of the denoiser in a file, without prefix; float8 weights that have scales are multiplied by them.

    dtype: of these products; other tensors are as in the file, which may be GGUF.
    Raises ValueError for weights that are quantized in another way.
    """
    if is_gguf(path):
        found = gguf_tensors(path)
        prefix = _prefix(found)
        return {name.removeprefix(prefix): tensor for name, tensor in found.items() if name.startswith(prefix)}
    names = tensor_shapes(read_header(path)).keys()
    prefix = _prefix(names)
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


def _prefix(names: Collection[str]) -> str:
    return next((start for start in PREFIXES if any(name.startswith(start) for name in names)), "")


def _scaled(name: str, weight: Tensor, scale: Tensor) -> Tensor:
    # a scale of the whole matrix, or of each row
    if weight.dtype.itemsize != 1 or not weight.is_floating_point() or scale.numel() not in (1, len(weight)):
        described = f"{_called(weight)} with scales of the shape {tuple(scale.shape)}"
        raise ValueError(f"its {name} is quantized to {described}, {CHOOSE_FLOAT}")
    return weight.float() * scale.float().reshape(-1, *[1] * (weight.dim() - 1))


def _called(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def in_diffusers_names(
    component_class: type[Any], tensors: dict[str, Tensor], config: Mapping[str, Any], expected: Collection[str]
) -> dict[str, Tensor]:
    """The tensors of a component as diffusers' converter names them. expected: the names of all its weights.

    Raises ValueError if it has no converter, or one that does not know the names.
    """
    from diffusers.loaders.single_file_model import SINGLE_FILE_LOADABLE_CLASSES

    classes: Mapping[str, Any] = SINGLE_FILE_LOADABLE_CLASSES
    known = classes.get(component_class.__name__)
    if known is None:
        raise ValueError(f"diffusers reads this kind with its own names of tensors only, as {min(expected)}")
    if component_class.__name__ == "UNet2DConditionModel":
        tensors = {PREFIXES[0] + name: tensor for name, tensor in tensors.items()}  # by which its converter finds it
    try:
        converted = known["checkpoint_mapping_fn"](checkpoint=tensors, config=dict(config))
    # converters fail in many ways on what they don't know
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"its tensors are not named as those of this kind are, such as {min(expected)}") from error
    return {_LEFT_OUT.get(name, name): tensor for name, tensor in converted.items() if tensor is not None}


def surplus(names: Collection[str], expected: Collection[str]) -> str:
    """A tensor of a layer that a component lacks though it has its neighbors, such as one more block; "" if none."""
    tops = {name.partition(".")[0] for name in expected}
    return min((name for name in names if name not in expected and name.partition(".")[0] in tops), default="")
