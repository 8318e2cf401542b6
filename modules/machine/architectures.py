"""The sizes of the families' published models, as the estimate of memory needs them.

The numbers come from resources/families.json, their corrections from resources/preset_memory.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any

from modules.config.families import load_families, model_of
from modules.config.installation import ROOT

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

SIMULATED_FILE = ROOT / "resources" / "preset_memory.json"
FACTORED = "factored state"  # values per trained weight of an optimizer that factors matrices, but not kernels


@dataclass(frozen=True)
class Activations:
    """Activations kept for the backward pass, in bytes per image pixel. part: with gradient checkpointing."""

    whole: float
    part: float


@dataclass(frozen=True)
class Blocks:
    """The blocks of a denoiser that can be swapped: their number, and the weights of all (in all denoisers) and of the
    largest one."""

    count: int
    weights: int
    largest: int


@dataclass(frozen=True)
class Architecture:
    """The size of a family's published model, as counted by `scripts/model_counts.py`.

    denoiser, text_encoders, connectors, vae: numbers of weights. quantizable_denoiser, quantizable_text: of those, the
    weights that quantization applies to. adapter: of a rank-1 LoRA, by `lora.targets`.
    text_adapters: the same for each text encoder's attention, 0 if it can't be adapted.
    lora, full: activations of the denoiser in mixed precision. vae_activations: in float32.
    held: bytes per pixel during sampling, by the "denoiser" in mixed precision and by the "vae" in float32.
    text_bytes: activations of each text encoder per caption.
    matrix: weights of the denoiser's largest parameter.
    block_inputs: activations that checkpointing keeps for the sake of blocks alone, as "part" of `lora`.
    guidance_denoisers: how many further networks of the denoiser's size sampling needs.
    clip: bytes per pixel of a frame that "encoder" and "decoder" of a VAE of videos hold for a clip, in float32, and
        those that each of its frames adds ("encoder_frame", "decoder_frame").
    """

    denoiser: int
    quantizable_denoiser: int
    text_encoders: Sequence[int]
    quantizable_text: Sequence[int]
    adapter: Mapping[str, int]
    text_adapters: Sequence[int]
    lora: Activations
    full: Activations
    text_bytes: Sequence[int]
    vae: int
    vae_activations: Activations
    held: Mapping[str, int]
    blocks: Blocks
    matrix: int
    block_inputs: int = 0
    clip: Mapping[str, int] = field(default_factory=dict)
    connectors: int = 0
    guidance_denoisers: int = 0


def _architecture(counted: Mapping[str, Any]) -> Architecture:
    figures = {name: value for name, value in counted.items() if name != "counted_from"}
    for each in fields(Architecture):
        if each.type == "Activations":
            figures[each.name] = Activations(**figures[each.name])
    figures["blocks"] = Blocks(**figures["blocks"])
    return Architecture(**figures)


@cache
def load_architectures() -> dict[str, Architecture]:
    """By family, or variant with sizes of its own, as `model_of` names it; what is not in it is of unknown size."""
    found: dict[str, Architecture] = {}
    for name, info in load_families().items():
        sizes = {name: info.memory, **{variant: one.memory for variant, one in info.variants.items()}}
        found |= {model: _architecture(memory) for model, memory in sizes.items() if memory}
    return found


@cache
def load_corrections() -> dict[str, dict[str, float]]:
    """Family or variant -> what the simulation of its presets (scripts/memory.py) found to differ from the counts.

    By the step's kind, its peak over the activations kept for the backward pass; by the kind of what is encoded and of
    the samples, what these need over their estimates; and FACTORED. `RunMemory` names the kinds.
    """
    return json.loads(SIMULATED_FILE.read_text(encoding="utf-8"))["corrections"]


def correction(config: TrainConfig, *kinds: str, otherwise: float = 1.0) -> float:
    """That of the first of these kinds that a preset of the family has, of its variant if that has any."""
    of_models = load_corrections()
    known = {**of_models.get(config.family, {}), **of_models.get(model_of(config).name, {})}
    return next((known[kind] for kind in kinds if kind in known), otherwise)
