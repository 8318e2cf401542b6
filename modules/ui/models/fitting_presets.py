"""The presets for a model family and method, one for each size of GPU memory. No Tk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from modules.config.families import load_families, variant_of
from modules.config.files import config_from_values
from modules.config.presets import (
    GPU_COUNTS,
    MEMORY_SIZES,
    fitting_memory,
    gpu_counts,
    has_variants,
    list_presets,
    load_preset,
    variant_name,
    why_not_offered,
)
from modules.machine.devices import Gpu


@dataclass(frozen=True)
class PresetChoice:
    """A preset for GPUs with `memory` GB. model: the variant of the family that it trains, "" for the usual model;
    model_label: as users know it."""

    preset: str
    memory: int
    model: str = ""
    model_label: str = ""

    @property
    def label(self) -> str:
        whose = f" ({self.model_label})" if self.model_label else ""
        return f"{self.preset}{whose}, {self.memory} GB GPU"

    def variant(self, num_gpus: int) -> str:
        """The name of the variant for as many of these GPUs as there is one for."""
        count = max((count for count in gpu_counts(self.preset) if count <= num_gpus), default=1)
        return variant_name(self.preset, self.memory, count)


def fitting_presets(family: str, method: str) -> tuple[PresetChoice, ...]:
    """The presets for a family and method, with less memory first. The first call reads the files of all presets."""
    return _all_presets().get((family, method), ())


def suggested_preset(choices: Sequence[PresetChoice], gpus: Sequence[Gpu]) -> PresetChoice | None:
    """The preset with the most memory that every GPU has, else the one with the least; None without choices.

    Of several presets for the same memory, such as one for images and one for videos, it is the first by name.
    """
    sizes = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes]
    memory = fitting_memory(min(sizes)) if sizes else None
    fitting = [choice for choice in choices if memory is not None and choice.memory <= memory]
    return max(fitting, key=lambda choice: choice.memory) if fitting else next(iter(choices), None)


def choice_of(choices: Sequence[PresetChoice], name: str) -> PresetChoice | None:
    """The choice that the preset or variant called `name` belongs to; None if it is none of them."""
    names = {choice.variant(count): choice for choice in choices for count in (1, *GPU_COUNTS)}
    return names.get(name)


@lru_cache(maxsize=1)
def _all_presets() -> dict[tuple[str, str], tuple[PresetChoice, ...]]:
    found: dict[tuple[str, str], tuple[PresetChoice, ...]] = {}
    for preset in list_presets():
        if has_variants(preset.name):
            config = config_from_values(load_preset(preset.name))
            sizes = [size for size in MEMORY_SIZES if not why_not_offered(preset.name, size)]
            model = variant_of(config.family, config.model.base)
            label = load_families()[config.family].variants[model].label if model else ""
            choices = found.get((config.family, config.method), ())
            choices += tuple(PresetChoice(preset.name, size, model, label) for size in sizes)
            found[config.family, config.method] = tuple(sorted(choices, key=lambda choice: choice.memory))
    return found
