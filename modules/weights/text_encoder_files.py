"""Tells which text encoder of a model a file has, by the names and widths of its tensors. Needs no torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.config.errors import ModelFileError, UserError
from modules.config.model_index import read_json
from modules.machine.hub import HUB_NAME, known_config
from modules.weights.errors import WeightsError
from modules.weights.file_kinds import kind_of
from modules.weights.safe import read_header, tensor_shapes

if TYPE_CHECKING:
    from modules.config.ModelConfig import ModelConfig
    from modules.families.Family import Family

SETTING = "model.text_encoders"
# Before the names of a text encoder: in whole checkpoints, and in what ComfyUI and trainers save of one.
_WRAPPER = r"(?:text_encoders\.\w+\.|cond_stage_model\.|conditioner\.embedders\.\d+\.)?"
# Architecture -> the embedding of its tokens, [tokens, width], behind the prefix.
_EMBEDDINGS = {
    "CLIP": rf"(?P<prefix>{_WRAPPER}(?:transformer\.|model\.)?)"
    r"(?:(?:text_model\.)?embeddings\.)?token_embedding\.weight",
    "T5": rf"(?P<prefix>{_WRAPPER}(?:transformer\.|text_encoder\.)?)(?:shared|encoder\.embed_tokens)\.weight",
    "BERT": rf"(?P<prefix>{_WRAPPER}(?:transformer\.|bert\.)?)embeddings\.word_embeddings\.weight",
    "a language model": rf"(?P<prefix>{_WRAPPER}(?:transformer\.)?)"
    r"(?:(?:\w+\.)*(?<!coder\.)embed_tokens|embedding\.word_embeddings)\.weight",  # the latter of ChatGLM
}
_WIDTHS = ("hidden_size", "d_model")  # in a config.json


@dataclass(frozen=True)
class EncoderKind:
    """What a text encoder is. width: of its embeddings; None if that isn't known. prefix: of its names in a file.

    is_sure: whether this is from the model or the file itself, and not from the family's published model.
    """

    architecture: str
    width: int | None
    prefix: str = ""
    is_sure: bool = True

    def __str__(self) -> str:
        return f"{self.architecture} with a width of {self.width}" if self.width else self.architecture


def encoder_files(family: Family, config: ModelConfig) -> dict[str, Path]:
    """Component -> the file of model.text_encoders that it is read from.

    Raises WeightsError for a file that is damaged, or that is none of the model's text encoders.
    """
    found: dict[str, Path] = {}
    kinds = _encoder_kinds(family, config) if config.text_encoders else {}
    for name in config.text_encoders:
        path = _checked(name)
        kind = kind_in(path)
        alike = [component for component, own in kinds.items() if own.architecture == kind.architecture]
        fitting = [component for component in alike if kinds[component].width in (kind.width, None)]
        if not fitting and len(alike) == 1 and not kinds[alike[0]].is_sure:
            fitting = alike  # a variant of the family, such as Stable Diffusion 2, in a single file without configs
        if not fitting:
            listed = " and ".join(dict.fromkeys(map(str, kinds.values())))
            raise WeightsError.at(
                SETTING,
                f"'{path}': is {kind}, and {family.label} has {listed}; leave it out, or choose the file of "
                f"one of {family.label}'s text encoders.",
            )
        free = [component for component in fitting if component not in found]
        if not free:
            raise WeightsError.at(
                SETTING,
                f"'{path}': is {kind}, as '{found[fitting[0]]}' is, which is the {fitting[0]} already; leave "
                "one of them out.",
            )
        found[free[0]] = path
    return found


def kind_in(path: Path) -> EncoderKind:
    """The text encoder in a file. Raises WeightsError if it has none, or several."""
    shapes = tensor_shapes(read_header(path))
    kinds = {kind.prefix: kind for kind in _kinds(shapes)}
    if not kinds:
        kind = kind_of(shapes)
        what = f"is {kind}" if kind else "has no text encoder, as far as the names of its tensors tell"
        raise WeightsError.at(SETTING, f"'{path}': {what}; choose the file of a text encoder.")
    if len(kinds) > 1:
        listed = " and ".join(sorted(str(kind) for kind in kinds.values()))
        raise WeightsError.at(SETTING, f"'{path}': has {listed}; choose a file with one text encoder.")
    return next(iter(kinds.values()))


def _kinds(shapes: Mapping[str, tuple[int, ...]]) -> list[EncoderKind]:
    found = []
    for architecture, pattern in _EMBEDDINGS.items():
        for name, shape in shapes.items():
            if (match := re.fullmatch(pattern, name)) and len(shape) == 2:
                found.append(EncoderKind(architecture, shape[1], match["prefix"]))
    return found


def _checked(name: str) -> Path:
    path = Path(os.path.expanduser(name))
    if not path.is_file() or path.suffix != ".safetensors":
        raise WeightsError.at(SETTING, f"{name!r}: is not a .safetensors file; choose one.")
    try:
        read_header(path)
    except WeightsError as error:
        raise WeightsError.at(SETTING, str(error)) from error
    return path


def _encoder_kinds(family: Family, config: ModelConfig) -> dict[str, EncoderKind]:
    """Text encoder -> what it is in the base model, as far as its configs on this machine or the family tell."""
    published = family.published.text_encoders if family.published else ()
    kinds = {}
    for component, (model, _) in zip(family.text.encoders, published, strict=True):
        own = _width(_config_of(config, component))
        architecture = _architecture(model.class_name.rpartition(".")[2])
        kinds[component] = EncoderKind(architecture, own or _width(model.config), is_sure=own is not None)
    return kinds


def _architecture(class_name: str) -> str:
    names = {"CLIP": "CLIP", "T5": "T5", "Bert": "BERT"}
    return next((name for part, name in names.items() if part in class_name), "a language model")


def _width(config: Mapping[str, Any]) -> int | None:
    text = config.get("text_config")
    found = (part.get(key) for part in (text, config) if isinstance(part, Mapping) for key in _WIDTHS)
    return next((value for value in found if isinstance(value, int)), None)


def _config_of(config: ModelConfig, component: str) -> dict[str, Any]:
    """The config.json of a base model's component, of one on the Hub downloaded if need be; {} if it has none.

    Raises WeightsError if the Hub can't be asked.
    """
    base = Path(os.path.expanduser(config.base))
    folder = config.base if config.base and base.is_dir() else config.config_folder
    try:
        if config.base and not base.exists() and HUB_NAME.fullmatch(config.base):
            return known_config(config.base, component)
        path = Path(os.path.expanduser(folder)) / component / "config.json"
        return read_json(path) if folder and path.is_file() else {}
    except (OSError, ModelFileError):
        return {}  # which loading reports
    except UserError as error:
        raise WeightsError.at("model.base", str(error)) from error
