"""The facts about the model families that need no torch, from resources/families.json.

`python scripts/families_reference.py --write` generates the file from the families in modules/families.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from modules.config.attentions import Attentions
from modules.config.installation import ROOT
from modules.config.methods import methods_for
from modules.config.ResolutionShift import ShiftLaw
from modules.config.TrainingTimesteps import TrainingTimesteps, training_timesteps

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

PATH = ROOT / "resources" / "families.json"
# Where the config of a model's denoiser is added to its model_index.json, because some families share a pipeline.
DENOISER_CONFIG = "denoiser_config"
SCHEDULER_CONFIG = "scheduler_config"  # added likewise: it tells whether a model is distilled


@dataclass(frozen=True, kw_only=True)
class VariantInfo:
    """A further published model of a family, as Variant has it.

    typical_bytes, memory, attention: as in FamilyInfo, where its sizes are not those of the family; else None.
    """

    label: str
    base: str
    typical_bytes: float | None = None
    memory: Mapping[str, Any] | None = field(default=None, hash=False)
    attention: Attentions | None = field(default=None, hash=False)


@dataclass(frozen=True, kw_only=True)
class FamilyInfo:
    """One family. A field is the attribute of Family with its name, unless scripts/families_reference.py translates it.

    label: as shown to users. is_default: whether a new config is of this family.
    denoisers, text_encoders, vae: names of the model's parts. objective: "ddpm" or "flow".
    align: image sizes must be multiples of it, in pixels. typical_bytes: of the whole model in float32. single_file:
    the key layout in which it can be written as a single file, None if it can't.
    can_train_vae, lora_targets, embedding_keys: as in Family; of the mappings only the keys, which are components.
    takes_guidance: whether its denoiser takes a guidance scale as input.
    conditions: name of what its denoiser sees beside text and latents -> its Condition.facts.
    frame_step, frame_rest, frame_latents, fps: as in Family; a step of 0 for models of images.
    frames_per_token: as in Family, also where it is that of `frame_step`.
    min_sample_steps, has_own_sampler: as in Family.
    skips_layers: whether its CLIP encoders can leave out their last layers.
    has_kohya_loras: whether its layers have names in kohya's LoRA format.
    takes_chunks: whether its text encoders can encode prompts in chunks of 75 tokens.
    groups_texts: whether texts of different lengths take passes of their own.
    experts: whether several denoisers share the timesteps.
    patch_size, shift_law, training_timesteps, expert_boundary, plain_noise_schedule: as in Family.
    memory: the sizes that machine/architectures.py holds; None if they are unknown.
    attention: what its published denoiser computes in a pass, as `Attentions` in config/attentions.py has it.
    variants: further published models, by name.
    text_trainable: whether the text encoders' own weights can be trained.
    """

    name: str
    label: str
    is_default: bool
    denoisers: tuple[str, ...]
    text_encoders: tuple[str, ...]
    vae: str
    objective: str
    align: int
    typical_bytes: float
    single_file: str | None
    can_train_vae: bool
    lora_targets: tuple[str, ...]
    embedding_keys: tuple[str, ...]
    takes_guidance: bool
    conditions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    frame_step: int = 0
    frame_rest: int = 1
    frame_latents: tuple[int, int] = (1, 1)
    frames_per_token: int = 0
    fps: float = 16.0
    min_sample_steps: int = 1
    has_own_sampler: bool = False
    groups_texts: bool = False
    skips_layers: bool = False
    takes_chunks: bool = False
    has_kohya_loras: bool = False
    patch_size: int = 2
    shift_law: ShiftLaw = "exponential"
    training_timesteps: TrainingTimesteps | None = None
    expert_boundary: float = 0.0
    plain_noise_schedule: bool = False
    experts: bool
    text_trainable: bool = True
    memory: Mapping[str, Any] | None = field(hash=False)
    attention: Attentions | None = field(default=None, hash=False)
    variants: Mapping[str, VariantInfo] = field(default_factory=dict, hash=False)

    @property
    def takes_masks(self) -> bool:
        """Whether its denoiser sees masks."""
        return any(facts.get("takes_masks") for facts in self.conditions.values())

    @property
    def takes_mask_clips(self) -> bool:
        """Whether its denoiser sees the mask of each frame of a clip."""
        return any(facts.get("takes_mask_clips") for facts in self.conditions.values())

    @property
    def max_input_images(self) -> int:
        """How many images of their settings its samples can start from."""
        return sum(facts["max_images"] for facts in self.conditions.values())

    @property
    def section(self) -> int:
        """How many frames of a clip go through its denoiser at once; 0 for all of them."""
        return max((facts.get("section", 0) for facts in self.conditions.values()), default=0)

    def takes(self, condition: str, without: str = "") -> bool:
        """Whether its denoiser sees a condition, and not the one `without`."""
        return condition in self.conditions and without not in self.conditions

    def fact(self, condition: str, name: str) -> Any:
        """A fact about one of its conditions; None if it lacks that."""
        return self.conditions.get(condition, {}).get(name)

    @property
    def trainable_text_encoders(self) -> tuple[str, ...]:
        return self.text_encoders if self.text_trainable else ()

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods that can train it."""
        return methods_for(self)


@lru_cache(maxsize=1)
def load_families() -> dict[str, FamilyInfo]:
    """The families by name, in the order of the menu."""
    entries = json.loads(PATH.read_bytes())
    listed = ("denoisers", "text_encoders", "lora_targets", "embedding_keys")
    infos = [
        FamilyInfo(
            **{
                **entry,
                **{name: tuple(entry[name]) for name in listed},
                "frame_latents": tuple(entry.get("frame_latents", (1, 1))),
                "training_timesteps": training_timesteps(entry.get("training_timesteps")),
                "attention": Attentions.read(entry.get("attention")),
                "variants": {name: _variant(values) for name, values in entry.get("variants", {}).items()},
            }
        )
        for entry in entries
    ]
    return {info.name: info for info in infos}


def _variant(values: Mapping[str, Any]) -> VariantInfo:
    return VariantInfo(**{**values, "attention": Attentions.read(values.get("attention"))})


def variant_of(family: str, base: str) -> str:
    """The name of the variant that a base model is, by its name on the Hub or that of its folder; "" for any other."""
    last = base.rstrip("/\\").replace("\\", "/").rpartition("/")[2].lower()
    variants = load_families()[family].variants
    return next((name for name, one in variants.items() if last == one.base.rpartition("/")[2].lower()), "")


def model_of(config: TrainConfig) -> FamilyInfo:
    """The family, with the name, label and sizes of the variant that the base model is, if it has sizes of its own."""
    return _model_of(config.family, variant_of(config.family, config.model.base))


@lru_cache(maxsize=64)
def _model_of(family_name: str, name: str) -> FamilyInfo:
    """name: of the variant, "" for none."""
    family = load_families()[family_name]
    variant = family.variants[name] if name else None
    if variant is None or variant.memory is None:
        return family
    return replace(
        family,
        name=name,
        label=variant.label,
        typical_bytes=variant.typical_bytes or family.typical_bytes,
        memory=variant.memory,
        attention=variant.attention,
    )


def default_family() -> str:
    """The name of the family of a new config: of the first in the menu, if none is the default."""
    infos = load_families().values()
    return next((info.name for info in infos if info.is_default), next(iter(infos)).name)


def families_with(**values: Any) -> tuple[str, ...]:
    """The names of the families with these values, as in families_with(objective="flow")."""
    return tuple(
        name
        for name, info in load_families().items()
        if all(getattr(info, key) == value for key, value in values.items())
    )


def families_with_single_files() -> tuple[str, ...]:
    """The names of the families whose whole models can be written as one file."""
    return tuple(name for name, info in load_families().items() if info.single_file)


def families_taking_clips() -> tuple[str, ...]:
    """The names of the families that generate videos."""
    return tuple(name for name, info in load_families().items() if info.frame_step)


def families_taking(condition: str, without: str = "", **facts: Any) -> tuple[str, ...]:
    """The names of the families whose denoisers see a condition about which these are the facts, as `takes`."""
    return tuple(
        name
        for name, info in load_families().items()
        if info.takes(condition, without) and all(info.fact(condition, key) == value for key, value in facts.items())
    )


def families_taking_masks() -> tuple[str, ...]:
    """The names of the families whose denoisers see masks."""
    return tuple(name for name, info in load_families().items() if info.takes_masks)


def families_taking_images() -> tuple[str, ...]:
    """The names of the families whose samples can start from images."""
    return tuple(name for name, info in load_families().items() if info.max_input_images)
