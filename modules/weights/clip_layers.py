"""Checks model.clip_skip against the number of layers that the CLIP text encoders of a model have. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.config.errors import ModelFileError
from modules.config.model_index import read_json
from modules.weights.errors import WeightsError

if TYPE_CHECKING:
    from modules.config.ModelConfig import ModelConfig
    from modules.families.Family import Family

CLIP_TYPE = "clip_text_model"
CLIP_LAYERS = 12  # of a config.json without num_hidden_layers


def check_clip_skips(model: ModelConfig, family: Family, folder: Path) -> None:
    """Raises WeightsError if model.clip_skip or clip_skips is above the number of layers of an encoder in `folder`."""
    if not family.text.skips_layers or max(model.clip_skip, *model.clip_skips, 1) == 1:
        return
    configs = {}
    for name in family.text.encoders:
        try:
            configs[name] = read_json(folder / name / "config.json")
        except (OSError, ModelFileError):
            continue  # a part that the model lacks, or whose loading tells what is wrong
    check_layers(model, family, configs)


def check_layers(model: ModelConfig, family: Family, configs: Mapping[str, Mapping[str, Any]]) -> None:
    """As `check_clip_skips`. configs: those of the text encoders, by component."""
    for number, name in enumerate(family.text.encoders):
        config = configs.get(name, {})
        if config.get("model_type") != CLIP_TYPE:
            continue
        setting, skip = "model.clip_skip", model.clip_skip
        if number < len(model.clip_skips):
            setting, skip = f"model.clip_skips.{number}", model.clip_skips[number]
        layers = config.get("num_hidden_layers", CLIP_LAYERS)
        if isinstance(layers, int) and skip > layers:
            raise WeightsError.at(setting, f"{skip}: the model's {name} has {layers} layers; use {layers} at most.")
