"""LoRA files of other programs, with names that diffusers replaces by its own when it loads them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from modules.weights.libraries import import_pipeline
from modules.weights.safe import load_tensors, read_header, tensor_shapes

if TYPE_CHECKING:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from torch import Tensor

    from modules.families.Family import Family

_LOSABLE = (".diff", ".diff_b", ".dora_scale")  # endings of what some converters drop, and others apply
_REFUSED = "Incompatible keys detected:"  # starts the message of diffusers' converter for FLUX
_OF_T5 = ("lora_te3_", "text_encoders.t5xxl.")  # beginnings of LoRAs that those of FLUX drop
# its converters fail in many ways on what they don't know
_UNKNOWN_FORMAT = (ValueError, KeyError, RuntimeError, IndexError)


class ConvertedLayer(NamedTuple):
    down: Tensor
    up: Tensor
    alpha: float


def converted_layers(path: Path, family: Family) -> Mapping[str, Mapping[str, ConvertedLayer]] | None:
    """Component -> path of the layer -> its adapter; None if diffusers does not know the format either."""
    pipeline = import_pipeline(family.pipeline)
    if not hasattr(pipeline, "lora_state_dict"):
        return None
    try:
        tensors, alphas = _converted(pipeline, str(path.parent), weight_name=path.name, local_files_only=True)
    except _UNKNOWN_FORMAT:
        return None
    layers: dict[str, dict[str, ConvertedLayer]] = {}
    for name, up in tensors.items():
        stem = name.removesuffix(".lora_B.weight")
        component, _, layer = stem.partition(".")
        if stem == name:
            continue
        down = tensors.get(f"{stem}.lora_A.weight")
        if down is None or component not in family.lora_targets:
            return None
        layers.setdefault(component, {})[layer] = ConvertedLayer(
            down, up, float(alphas.get(f"{stem}.alpha", len(down)))
        )
    return layers or None


def lost_tensors(path: Path, pipeline: type[DiffusionPipeline]) -> list[str]:
    """The names of a file's tensors that change the model and that diffusers drops when it loads the file.

    They belong to norm layers, biases, other layers as a whole, DoRA or FLUX's T5. Biases that become those of a LoRA
    are not dropped. Empty for a file that diffusers can't load.
    """
    names = tensor_shapes(read_header(path))
    losable = [name for name in names if name.endswith(_LOSABLE) or (name.startswith(_OF_T5) and "up" in name)]
    if not losable:
        return []
    tensors = load_tensors(path)
    try:
        converted, _ = _converted(pipeline, dict(tensors))
    except _UNKNOWN_FORMAT:
        return []
    kept = {tensor.data_ptr() for tensor in converted.values()}  # such tensors get other names, but no other values
    return [name for name in losable if tensors[name].any() and tensors[name].data_ptr() not in kept]


def refused_tensors(error: Exception, names: Iterable[str]) -> list[str]:
    """Those of a file's tensors, by `names`, that diffusers' converter for FLUX can't place; empty for other errors.

    Its message lists them behind its first line, renamed, and with all of the text encoders, which it would take.
    """
    _, _, listed = str(error).partition(_REFUSED)
    keys = [key for key in map(str.strip, listed.split(", ")) if key and not key.startswith("lora_te")]
    plain = {_without_prefix(key) for key in keys}
    return [name for name in names if _without_prefix(name) in plain] or keys


def _without_prefix(name: str) -> str:
    """The name of a tensor in the form that kohya's and ComfyUI's names have in common."""
    return name.removeprefix("diffusion_model.").removeprefix("lora_unet_").replace(".", "_")


def _converted(
    pipeline: type[DiffusionPipeline], source: str | dict[str, Tensor], **options: Any
) -> tuple[Mapping[str, Tensor], Mapping[str, float]]:
    """What the pipeline makes of a file's tensors, and the alphas of layers that are not multiplied in."""
    convert = cast("Any", pipeline).lora_state_dict
    if "return_alphas" in inspect.signature(convert).parameters:
        options["return_alphas"] = True
    read = convert(source, **options)
    return (read[0], read[1] or {}) if isinstance(read, tuple) else (read, {})
