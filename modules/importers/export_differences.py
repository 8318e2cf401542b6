"""What another program's files don't say of settings of Chorus: found by importing the files again."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from modules.config.ConceptConfig import ConceptConfig
from modules.config.DataConfig import DataConfig
from modules.config.describe import is_visible, settings_by_path, value_at
from modules.config.explain import generic_path
from modules.config.families import load_families
from modules.config.show_value import show_value
from modules.config.TrainConfig import TrainConfig
from modules.importers.ImportResult import Line
from modules.importers.SdScriptsArguments import full_path

# Settings of how and where Chorus itself works, which say nothing of the training.
OWN = ("config_version", "cache_dir", "keep_awake", "tensorboard")
# Settings without effect as long as these others are 0.
_OF_OTHERS = {
    "loss.huber_delta": ("loss.huber", "loss.smooth_l1"),
    "loss.huber_schedule": ("loss.huber", "loss.smooth_l1"),
    "diffusion.offset_noise_random": ("diffusion.offset_noise",),
    "diffusion.offset_noise_adaptive": ("diffusion.offset_noise",),
    "diffusion.multires_noise_discount": ("diffusion.multires_noise_iterations",),
}
LISTS = ("concepts", "sampling.samples", "embeddings")
_FILES = ("model.base", "model.vae", "model.denoiser", "lora.start_from")


def written_out(config: TrainConfig) -> TrainConfig:
    """The same settings with whole paths, and with the values that empty ones stand for; only what is enabled."""
    config = copy.deepcopy(config)
    config.workspace_dir = full_path(config.workspace_dir)
    for path in _FILES:
        section, name = path.split(".")
        part = getattr(config, section)
        setattr(part, name, full_path(getattr(part, name), may_be_name=True))
    config.model.text_encoders = [full_path(path, may_be_name=True) for path in config.model.text_encoders]
    if config.batch_size_mode == "global" and not config.enable_multi_gpu:
        config.batch_size = max(1, config.batch_size // config.gradient_accumulation_steps)
        config.batch_size_mode = "per_device"
    if load_families()[config.family].objective == "ddpm" and config.diffusion.timesteps in ("trained", "family"):
        config.diffusion.timesteps = "uniform"  # what both are for these models
    config.sampling.samples = [sample for sample in config.sampling.samples if sample.enabled and sample.prompt.strip()]
    for sample in config.sampling.samples:
        sample.prompt = " ".join(sample.prompt.split())
        sample.width = sample.width or config.data.width or config.data.resolution
        sample.height = sample.height or config.data.height or config.data.resolution
    config.concepts = [_concept(concept) for concept in config.concepts if concept.enabled]
    _write_out_resolutions(config.data, config.concepts)
    return config


def _concept(concept: ConceptConfig) -> ConceptConfig:
    concept.path, concept.mask_folder = full_path(concept.path), full_path(concept.mask_folder)
    concept.caption_extension = concept.caption_extension or ".txt"
    if concept.include_subfolders and not _has_folders(Path(concept.path)):
        concept.include_subfolders = False
    return concept


def _has_folders(folder: Path) -> bool:
    """Whether the folder has others in it; True if that can't be seen."""
    try:
        return any(path.is_dir() for path in folder.iterdir())
    except (OSError, ValueError):
        return True


def _write_out_resolutions(data: DataConfig, concepts: list[ConceptConfig]) -> None:
    """The resolution of the first concept as that of the data; those of the others where they differ from it."""
    if not data.bucketing and data.width and data.height:
        data.resolution = max(8, round(math.sqrt(data.width * data.height) / 8) * 8)
        if data.width == data.height:
            data.resolution, data.width, data.height = data.width, None, None
    sides = [concept.resolution or data.resolution for concept in concepts]
    data.resolution = sides[0] if sides else data.resolution
    for concept, side in zip(concepts, sides, strict=True):
        concept.resolution = None if side == data.resolution else side


def differences(config: TrainConfig, back: TrainConfig, reasons: Mapping[str, str]) -> list[Line]:
    """A line for each setting with an effect that has another value after the export and the import.

    reasons: by "path value" or path, with [] for the numbers of entries; "" for all others.
    """
    lines = []
    for path, value in _values(config):
        generic = generic_path(path)
        if generic in OWN or _is_without_effect(config, generic, value) or not _is_there(back, path):
            continue
        other = value_at(back, path)
        if not _is_same(value, other):
            here = "" if other in (None, "", [], False) else _text(other)
            why = reasons.get(f"{generic} {value}") or reasons.get(generic, reasons[""])
            lines.append(Line(f"{path} {_text(value)}", here, why, path))
    for name in LISTS:
        for number in range(len(value_at(back, name)), len(value_at(config, name))):
            why = reasons.get(f"{name}[]", reasons[""])
            lines.append(Line(f"{name}.{number}", why=why, path=f"{name}.{number}"))
    return lines


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) and value else show_value(value)


def _is_without_effect(config: TrainConfig, path: str, value: Any) -> bool:
    if path == "data.max_side" and value is None:
        return True  # the longest side that the aspect ratio allows is written
    return path in _OF_OTHERS and not any(value_at(config, other) for other in _OF_OTHERS[path])


def _is_there(config: TrainConfig, path: str) -> bool:
    try:
        value_at(config, path)
    except IndexError:
        return False
    return True


def _values(config: TrainConfig) -> Iterator[tuple[str, Any]]:
    """Every setting that has an effect, with its value."""
    for path, info in settings_by_path().items():
        if info.type == "list":
            continue
        name, in_list, rest = path.partition("[].")
        if not in_list:
            if is_visible(info, config):
                yield path, value_at(config, path)
            continue
        for number, item in enumerate(value_at(config, name)):
            if is_visible(info, config, item):
                yield f"{name}.{number}.{rest}", value_at(item, rest)


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, float) and isinstance(other, float):
        return math.isclose(value, other, rel_tol=1e-9)
    return bool(value == other)
