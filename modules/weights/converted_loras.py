"""LoRA files of other programs, with names that diffusers replaces by its own when it loads them."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from modules.weights.errors import WeightsError
from modules.weights.libraries import import_pipeline
from modules.weights.LoraSource import LoraSource

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


def converted_layers(
    file: LoraSource, family: Family
) -> tuple[Mapping[str, Mapping[str, ConvertedLayer]], list[str]] | None:
    """(component -> path of the layer -> its adapter, the names of tensors of parts that get no LoRA).

    None if diffusers does not know the format. Raises WeightsError if it would drop layers without a word.
    """
    pipeline = import_pipeline(family.pipeline)
    if not hasattr(pipeline, "lora_state_dict"):
        return None
    from modules.weights.tensor_sources import plain, sources_of, with_sources

    try:
        named, alphas = _converted(pipeline, with_sources(file.tensors))
    except _UNKNOWN_FORMAT:
        return None
    of_parts = [name for name in named if name.partition(".")[0] not in family.lora_targets]
    check_all_used(file, sources_of(named.values()))
    left_out = sorted(sources_of(named[name] for name in of_parts))
    tensors = plain(named)
    layers: dict[str, dict[str, ConvertedLayer]] = {}
    for name, up in tensors.items():
        stem = name.removesuffix(".lora_B.weight")
        component, _, layer = stem.partition(".")
        if stem == name or name in of_parts:
            continue
        down = tensors.get(f"{stem}.lora_A.weight")
        if down is None:
            return None
        layers.setdefault(component, {})[layer] = ConvertedLayer(
            down, up, float(alphas.get(f"{stem}.alpha", len(down)))
        )
    return (layers, left_out) if layers else None


def check_all_used(file: LoraSource, used: Collection[str]) -> None:
    """Raises WeightsError if matrices of a file's LoRAs are not among what diffusers makes its layers of."""
    unused = [
        tensor
        for parts in file.layers.values()
        for kind, tensor in parts.items()
        if kind in ("down", "up") and tensor not in used and not tensor.startswith(_OF_T5)
    ]
    if unused:
        raise WeightsError(
            f"'{file.path}': diffusers drops {len(unused)} of its tensors, such as '{unused[0]}', without a word; "
            "choose a LoRA in diffusers' format, or convert it with the program that made it."
        )


def converted_sources(file: LoraSource, pipeline: type[DiffusionPipeline]) -> Collection[str] | None:
    """The names of the tensors that diffusers uses of a file; None if it can't convert the file."""
    from modules.weights.tensor_sources import sources_of, with_sources

    try:
        converted, _ = _converted(pipeline, with_sources(file.tensors))
    except _UNKNOWN_FORMAT:
        return None
    return sources_of(converted.values())


def lost_tensors(file: LoraSource, pipeline: type[DiffusionPipeline]) -> list[str]:
    """The names of a file's tensors that change the model and that diffusers drops when it loads the file.

    They belong to norm layers, biases, other layers as a whole, DoRA or FLUX's T5. Biases that become those of a LoRA
    are not dropped. Empty for a file that diffusers can't load.
    """
    names = file.shapes
    losable = [name for name in names if name.endswith(_LOSABLE) or (name.startswith(_OF_T5) and "up" in name)]
    used = converted_sources(file, pipeline) if losable else None
    return [] if used is None else [name for name in losable if file.tensors[name].any() and name not in used]


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
    pipeline: type[DiffusionPipeline], source: dict[str, Tensor], **options: Any
) -> tuple[Mapping[str, Tensor], Mapping[str, float]]:
    """What the pipeline makes of a file's tensors, and the alphas of layers that are not multiplied in."""
    convert = cast("Any", pipeline).lora_state_dict
    if "return_alphas" in inspect.signature(convert).parameters:
        options["return_alphas"] = True
    read = convert(source, **options)
    return (read[0], read[1] or {}) if isinstance(read, tuple) else (read, {})
