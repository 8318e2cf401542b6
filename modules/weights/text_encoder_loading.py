"""Loads a text encoder of transformers from one file, in the names of transformers, ComfyUI or OpenCLIP."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.weights.part_files import float_tensors
from modules.weights.quantization import layer_of_rows, quantizable_layers
from modules.weights.single_file import OPEN_CLIP_LAYER, OPEN_CLIP_TOP
from modules.weights.text_encoder_files import kind_in

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel

    from modules.weights.quantization import Wanted
    from modules.weights.ScaledRows import ScaledRows

_EMBEDDING = re.compile(r"(?P<stack>(?:\w+\.)*)embed_tokens\.weight")  # of a language model
_LAYER = re.compile(r"(?P<stack>.*\b(?:layers|layer|block)\.)(?P<number>\d+)\.")
_COMPUTED = (".position_ids", ".inv_freq")  # buffers that older files have
_LEVELS = ("text_model.", "model.")  # before names in files or in modules, and not in the other
# What makes images of a language model's input, or words of its output: no pipeline that only reads texts needs them.
_HEAD = "lm_head."
_VISION = re.compile(r"(?:^|\.)(?:visual|vision_tower|vision_model|multi_modal_projector)\.")


def load_text_encoder(
    component_class: type[Any], path: Path, config_folder: Path, dtype: torch.dtype, wanted: Wanted
) -> tuple[PreTrainedModel, str]:
    """The text encoder, and one of the tensors that its file lacks; else "".

    config_folder: of the base model's component, whose architecture the file must have. wanted: its family tells what
    is needed of it. A vision tower for images that it is never shown is 0 where the file has none, and so is what turns
    its outputs into words; layers that are never read may be missing. Those that the file has quantized as the settings
    want them are QuantizedLinear at once.
    Raises ValueError for a file with layers or shapes that the base model's has not, and whatever transformers raises.
    """
    import torch

    config = component_class.config_class.from_pretrained(config_folder)
    if hasattr(config, "quantization_config"):  # of the base model's own weights
        del config.quantization_config
    with torch.device("meta"):
        expected = component_class(config).state_dict().keys()
    encoding = wanted.family.text
    tensors = _named(float_tensors(path, dtype, kind_in(path).prefix, wanted.quantization), expected)
    rows = _take_rows(tensors)
    last = _leave_out_layers(config, tensors, encoding.layers_read)
    if (projection := "text_projection.weight") in expected and projection not in tensors and _is_unprojected(config):
        tensors[projection] = torch.eye(config.projection_dim, config.hidden_size)
    component, report = component_class.from_pretrained(
        None, config=config, state_dict=tensors, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
    )
    for name, own, wanted in report["mismatched_keys"]:
        raise ValueError(f"its {name} has the shape {tuple(own)} and that of model.base {tuple(wanted)}")
    if name := _surplus(report["unexpected_keys"], expected):
        raise ValueError(f"it has a {name}, and that of model.base has none")
    weights, missing = component.state_dict(), set(report["missing_keys"])
    for name in sorted(missing):
        is_unseen = _VISION.search(name) and not encoding.sees_images
        if name.startswith(_HEAD) or is_unseen or (last and f".layers.{last}." in f".{name}"):
            missing.remove(name)
            weights[name].zero_()
    _put_rows(component, rows, wanted)
    return component, min(missing, default="")


def _take_rows(tensors: dict[str, Tensor]) -> dict[str, ScaledRows]:
    """Those that are ScaledRows, in whose place there are their values then, which transformers can convert."""
    from modules.weights.ScaledRows import ScaledRows

    rows = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, ScaledRows)}
    tensors |= {name: one.values() for name, one in rows.items()}
    return rows


def _put_rows(component: PreTrainedModel, rows: Mapping[str, ScaledRows], wanted: Wanted) -> None:
    """Puts a QuantizedLinear in place of each layer that is to be quantized and whose rows are."""
    for name in quantizable_layers(wanted.family, wanted.name, component) if rows else ():
        layer: Any = component.get_submodule(name)
        own = _rows_of(name, rows)
        if own is not None and own.shape == layer.weight.shape:
            component.set_submodule(name, layer_of_rows(own, layer.bias, wanted.quantization))


def _rows_of(layer: str, rows: Mapping[str, ScaledRows]) -> ScaledRows | None:
    """The rows of a layer, whose name may begin with a level more or less than in the file."""
    names = [layer, *(level + layer for level in _LEVELS), *(layer.removeprefix(level) for level in _LEVELS)]
    return next((rows[f"{name}.weight"] for name in names if f"{name}.weight" in rows), None)


def _leave_out_layers(config: PretrainedConfig, tensors: Collection[str], needed: int) -> int:
    """Lets a model have as many layers as its file if those include the `needed` ones, and one more, of zeros.

    That one changes nothing, and the norm behind the last layer would otherwise change the output of the last one that
    is read. Returns its number, 0 if the file has all layers or too few.
    """
    text = config.get_text_config()
    numbers = {int(match["number"]) for name in tensors if (match := _LAYER.match(name)) and not _VISION.search(name)}
    count = max(numbers, default=-1) + 1
    if not needed <= count < text.num_hidden_layers or not needed:
        return 0
    text.num_hidden_layers = count + 1
    return count


def _is_unprojected(config: PretrainedConfig) -> bool:
    """Whether a CLIP is OpenAI's, whose outputs Stable Diffusion 3 and others take as they are: files don't say so."""
    return config.hidden_act == "quick_gelu" and config.projection_dim == config.hidden_size


def _named(tensors: dict[str, Tensor], expected: Collection[str]) -> dict[str, Tensor]:
    """The tensors in names that transformers reads. expected: the names of the component's weights."""
    if any(name.startswith("transformer.resblocks.") for name in tensors):
        tensors = _from_open_clip(tensors)
    tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith(_COMPUTED)}
    own, wanted = _stack(tensors), _stack(expected)
    if own is None or wanted is None:
        return tensors
    return {_moved(name, own, wanted): tensor for name, tensor in tensors.items()}


def _stack(names: Collection[str]) -> str | None:
    """What precedes the names of a language model's embedding and layers; None for other text encoders."""
    return next((match["stack"] for name in names if (match := _EMBEDDING.fullmatch(name))), None)


def _moved(name: str, own: str, wanted: str) -> str:
    inside = name.removeprefix(own)
    is_in_stack = name.startswith(own) and inside.startswith(("embed_tokens.", "layers.", "norm."))
    return wanted + inside if is_in_stack else name


def _from_open_clip(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Converts from OpenCLIP's layout, in which query, key and value of a layer are concatenated to one tensor."""
    tops = {theirs: f"text_model.{ours}" for ours, theirs in OPEN_CLIP_TOP.items()}
    layers = {theirs: ours for ours, theirs in OPEN_CLIP_LAYER.items()}
    converted: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"transformer\.resblocks\.(\d+)\.(.+?)[._](weight|bias)", name)
        if match is None:
            if name == "text_projection":
                converted["text_projection.weight"] = tensor.T.contiguous()
            else:
                converted[tops.get(name, name)] = tensor
            continue
        layer, kind = f"text_model.encoder.layers.{match[1]}", match[3]
        if match[2] == "attn.in_proj":
            for part, own in zip("qkv", tensor.chunk(3), strict=True):
                converted[f"{layer}.self_attn.{part}_proj.{kind}"] = own.clone()
        else:
            converted[f"{layer}.{layers.get(match[2], match[2])}.{kind}"] = tensor
    return converted


def _surplus(names: Collection[str], expected: Collection[str]) -> str:
    """A tensor of a layer that the component lacks though it has others like it; "" if there is none."""
    stacks = {match["stack"] for name in expected if (match := _LAYER.match(name))}
    return min((name for name in names if (match := _LAYER.match(name)) and match["stack"] in stacks), default="")
