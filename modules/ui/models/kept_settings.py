"""What stays when a preset is chosen: what a person has put in about their own data and places."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from modules.ui.models.setting_values import value_in

KEPT = {
    "concepts": "concepts",
    "workspace_dir": "run folder",
    "cache_dir": "cache folder",
    "output.name": "model name",
    "output.fallback_dir": "fallback folder",
    "sampling.samples": "prompts",
    "embeddings": "embeddings",
    "model.base": "base model",
    "model.config_folder": "its configuration folder",
    "model.prediction_type": "its prediction type",
    "lora.start_from": "LoRA to start from",
}
"""A setting, or a list as a whole -> what it is called in a sentence."""

OF_THE_FAMILY = ("model.base", "lora.start_from")
OF_THE_METHOD = ("embeddings", "lora.start_from")
OF_THE_BASE = ("model.config_folder", "model.prediction_type")


def kept_settings(modified: Sequence[str], now: dict, preset: dict) -> list[str]:
    """The paths of KEPT that stay.

    modified: the settings that differ from the preset before, or, where there was a file, from the defaults.
    now, preset: nested values, all of them.
    """
    kept: list[str] = []
    for path in KEPT:
        stays = any(is_within(one, [path]) for one in modified)
        if path in OF_THE_FAMILY:
            stays = stays and now["family"] == preset["family"]
        if path in OF_THE_METHOD:
            stays = stays and now["method"] == preset["method"]
        if path in OF_THE_BASE:
            stays = stays and ("model.base" in kept or value_in(now, "model.base") == value_in(preset, "model.base"))
        if stays:
            kept.append(path)
    return kept


def is_within(path: str, paths: Collection[str]) -> bool:
    """Whether a setting is one of `paths` or in one of these lists."""
    return any(path == one or path.startswith(f"{one}.") for one in paths)
