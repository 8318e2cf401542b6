"""The rows of the list of presets, for a given memory and number of GPUs. No Tk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from modules.config.batch_size import global_batch, learning_rate_factor, scientific
from modules.config.counted import counted
from modules.config.files import config_from_values
from modules.config.presets import (
    GPU_COUNTS,
    fitting_memory,
    gpu_counts,
    has_variants,
    list_presets,
    load_preset,
    preset_of,
    sized_preset,
    variant_name,
    why_not_offered,
)
from modules.config.TrainConfig import TrainConfig
from modules.machine.devices import Gpu
from modules.machine.memory_estimate import GIB, estimate_memory

COLUMNS = {"Preset or file": 190, "What it is for": 420, "Memory": 80, "Global batch": 100, "Learning rate": 115}
"""Title -> width in pixels."""


def preset_rows(memory: int | None, num_gpus: int, family: str = "") -> list[tuple[str, tuple[str, ...]]]:
    """("preset:NAME", cells) for each preset. memory: of each GPU, in GB; None: any. family: "" for all."""
    presets = [preset for preset in list_presets() if family in ("", _family_of(preset.name))]
    return [_row(preset.name, preset.description, memory, num_gpus) for preset in presets]


def same_preset(rows: Sequence[tuple[str, tuple[str, ...]]], current: str) -> str:
    """The row of the preset that `current`, such as "preset:sd15-lora-8gb", is a variant of; `current` if there is
    none, or if it has a row itself."""
    kind, _, name = current.partition(":")
    names = [row for row, _ in rows]
    if kind != "preset" or current in names:
        return current
    return next((row for row in names if preset_of(row.partition(":")[2]) == preset_of(name)), current)


@lru_cache(maxsize=256)
def _family_of(name: str) -> str:
    return str(load_preset(name).get("family", TrainConfig().family))


def file_rows(paths: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """("file:PATH", cells) for the existing settings files. A network disk may make this slow."""
    return [(f"file:{path}", (Path(path).name, path, "", "", "")) for path in paths if os.path.isfile(path)]


def suggested(gpus: Sequence[Gpu]) -> tuple[int | None, int]:
    """The memory in GB and the number of GPUs to show presets for on a machine; (None, 1) without a GPU."""
    sizes = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes]
    counts = [count for count in (1, *GPU_COUNTS) if count <= len(gpus)]
    return (fitting_memory(min(sizes)) if sizes else None), (max(counts) if counts else 1)


@lru_cache(maxsize=512)
def _row(name: str, description: str, memory: int | None, num_gpus: int) -> tuple[str, tuple[str, ...]]:
    if not has_variants(name):
        return f"preset:{name}", (name, description, "", "", "")
    if num_gpus > 1 and num_gpus not in gpu_counts(name):
        num_gpus = 1
        description = description.replace(";", ", on a single GPU;", 1)
    variant = variant_name(name, memory, num_gpus)
    if memory is not None and (reason := why_not_offered(name, memory)):
        return f"preset:{variant}", (variant, reason, "too little", "", "")
    if memory is not None:
        description = description.partition(";")[0]  # the rest is about the size that the preset itself is for
    config = config_from_values(sized_preset(variant), f"preset {variant}")
    images = global_batch(config, num_gpus)
    rate = config.optimizer.learning_rate * learning_rate_factor(config, num_gpus)
    memory_estimate = estimate_memory(config, num_gpus)
    needed = f"{memory_estimate.peak / GIB:.1f} GiB" if memory_estimate else "unknown"
    return f"preset:{variant}", (variant, description, needed, counted(images, "image"), scientific(rate))
