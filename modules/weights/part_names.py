"""The names of the tensors in files of one part: prefixes, and the names of its makers or of ComfyUI."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from modules.weights.double_stream_names import TIME_EMBEDDINGS, double_stream_converter
from modules.weights.name_rules import Rules, by_rules, rules_of
from modules.weights.vae_names import vae_converter

if TYPE_CHECKING:
    from torch import Tensor

UNET_PREFIX = "model.diffusion_model."
# Before the names of a denoiser, the longest first: in whole models and ComfyUI's own files, in what ComfyUI saves of
# HunyuanVideo, in trainers' and LoRA tools' exports, in AuraFlow's, in NVIDIA's.
PREFIXES = (UNET_PREFIX, "diffusion_model.", "transformer.", "model.model.", "model.", "net.")
# Component beside the denoiser -> the starts of its names in a denoiser's file, behind the prefix or without it. Files
# of the transformer alone may lack some of them.
INSIDE = {
    "AnimaTextConditioner": ("llm_adapter.",),
    "LTX2TextConnectors": ("video_embeddings_connector.", "audio_embeddings_connector.", "text_embedding_projection."),
}
# The same names -> those of diffusers. Source: scripts/convert_ltx2_to_diffusers.py of diffusers.
_INNER_NAMES: Mapping[str, Rules] = {
    "AnimaTextConditioner": rules_of(r"^llm_adapter\."),
    "LTX2TextConnectors": rules_of(r"""
        ^text_embedding_projection\.aggregate_embed\.                 text_proj_in.
        ^text_embedding_projection\.(video|audio)_aggregate_embed\.   \1_text_proj_in.
        ^(video|audio)_embeddings_connector\.                         \1_connector.
        \.transformer_1d_blocks\.                                     .transformer_blocks.
        \.(q|k)_norm\.                                                .norm_\1.
    """),
}
# Names that the converters of diffusers 0.42 leave as they are: the positions of Wan 2.1 FLF2V's two images.
_LEFT_OUT = {"img_emb.emb_pos": "condition_embedder.image_embedder.pos_embed"}


def prefix_of(names: Collection[str], expected: Collection[str]) -> str:
    """What precedes the names of a denoiser in a file. expected: the names of its weights in diffusers."""
    return next((start for start in PREFIXES if _starts(names, start) and not _starts(expected, start)), "")


def found_inside(names: Collection[str], component: str) -> list[str]:
    """The starts of the names of a component in INSIDE, of those that are in a denoiser's file, with the prefix."""
    prefix = prefix_of(names, ())
    starts = (place + start for start in INSIDE.get(component, ()) for place in dict.fromkeys((prefix, "")))
    return [start for start in starts if _starts(names, start)]


def inner_name(name: str, component: str) -> str:
    """The name in diffusers of a tensor of a component in INSIDE. name: without prefix."""
    return by_rules(name, _INNER_NAMES[component])


def _starts(names: Collection[str], start: str) -> bool:
    return any(name.startswith(start) for name in names)


def in_diffusers_names(
    component_class: type[Any], tensors: dict[str, Tensor], config: Mapping[str, Any], expected: Collection[str]
) -> dict[str, Tensor]:
    """The tensors of a component, without prefix, in the names of diffusers. expected: the names of all its weights.

    Raises ValueError if there is no converter for it, or one that does not know the names.
    """
    convert = _converter(component_class.__name__)
    if convert is None:
        raise ValueError(f"this kind is read with diffusers' own names of tensors only, as {min(expected)}")
    if component_class.__name__ == "UNet2DConditionModel":
        tensors = {UNET_PREFIX + name: tensor for name, tensor in tensors.items()}  # by which its converter finds it
    unknown = ValueError(f"its tensors are not named as those of this kind are, such as {min(expected)}")
    try:
        converted = convert(checkpoint=tensors, config=dict(config))
    # converters fail in many ways on what they don't know
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise unknown from error
    if not set(converted).intersection(expected):
        raise unknown
    return {_LEFT_OUT.get(name, name): tensor for name, tensor in converted.items() if tensor is not None}


def _converter(class_name: str) -> Callable[..., dict[str, Tensor]] | None:
    """Takes the tensors as `checkpoint` and the configuration as `config`."""
    from diffusers.loaders.single_file_model import SINGLE_FILE_LOADABLE_CLASSES

    if class_name in TIME_EMBEDDINGS:
        return double_stream_converter(class_name)
    if convert := vae_converter(class_name):
        return convert
    classes: Mapping[str, Any] = SINGLE_FILE_LOADABLE_CLASSES
    return classes[class_name]["checkpoint_mapping_fn"] if class_name in classes else None


def surplus(names: Collection[str], expected: Collection[str]) -> str:
    """A tensor of a layer that a component lacks though it has its neighbors, such as one more block; "" if none."""
    tops = {name.partition(".")[0] for name in expected}
    return min((name for name in names if name not in expected and name.partition(".")[0] in tops), default="")
