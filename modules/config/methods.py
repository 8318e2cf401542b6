"""The facts about the training methods, without torch.

A method is one entry here and one file, `modules/methods/NAME.py`, which implements it. No other code compares a
method's name: it uses the facts of the chosen method instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

BLANK, TARGET, POSITIVE, NEGATIVE = "blank", "target", "positive", "negative"
"""Roles of prompts in `fixed_prompts`: the empty one, and those of a slider, of which the last two are numbered."""


class FamilyParts(Protocol):
    """What a method needs to know of a family to decide which components it can train. Family and FamilyInfo fulfil it.

    Components are named as in the family's pipeline. trainable_text_encoders: text encoders that gradients reach.
    lora_targets: components that LoRA can adapt. embedding_keys: text encoders that textual inversion can extend.
    """

    @property
    def denoisers(self) -> Collection[str]: ...
    @property
    def trainable_text_encoders(self) -> Collection[str]: ...
    @property
    def vae(self) -> str: ...
    @property
    def can_train_vae(self) -> bool: ...
    @property
    def lora_targets(self) -> Collection[str]: ...
    @property
    def embedding_keys(self) -> Collection[str]: ...


@dataclass(frozen=True)
class MethodFacts:
    """One method.

    name: as in settings files. label: as shown to users. trains: what it trains, in a few words.
    trainable: family -> the components that the method can train; empty if it can't train the family.
    settings: the sections of TrainConfig that apply to this method alone.
    uses_denoiser: whether the loss is the denoiser's, computed from cached latents, noise and captions. Other methods
    train on pixels and ignore the settings of captions, noise and loss.
    chooses_parts: whether the settings `denoiser` and `text_encoder` select what trains.
    trains_weights: whether the model's own weights train, in their own precision. Other methods train additional
    weights, in float32 at least.
    trains_adapters: whether it trains adapters as described by `lora`, so that the original model remains available.
    trains_words: whether it trains the words of `embeddings`, in all text encoders.
    has_formats: whether `output.format` selects the formats of the result.
    can_shard: whether ranks can share the weights of what it trains.
    compares: whether its loss compares predictions with others, and not with images alone: masks, prior preservation
    and caption dropout have no meaning for it.
    refuses_text: whether text encoders stay as they are, although `text_encoder` may say that they train.
    refused: settings -> (their value that the method works with, why others are refused).
    num_predictions: how many predictions of a step get gradients.
    prompts: settings -> role -> prompt, as in `fixed_prompts`.
    pair_words: what the counterparts of images are called, one and several, if it may learn from pairs.
    takes_pairs: settings -> whether it does.
    lists_pairs: whether a file in a concept's folder can list the pairs (data/preference_pairs.py).
    draws_images: settings -> whether it needs no images.
    goes_both_ways: whether its result is meant for strengths below 0, too.
    """

    name: str
    label: str
    trains: str
    trainable: Callable[[FamilyParts], Collection[str]]
    settings: tuple[str, ...] = ()
    uses_denoiser: bool = True
    chooses_parts: bool = False
    trains_weights: bool = False
    trains_adapters: bool = False
    trains_words: bool = False
    has_formats: bool = True
    can_shard: bool = False
    compares: bool = False
    refuses_text: bool = False
    refused: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    num_predictions: int = 1
    prompts: Callable[[TrainConfig], dict[str, str]] = lambda config: {}
    pair_words: tuple[str, str] = ("", "")
    takes_pairs: Callable[[TrainConfig], bool] = lambda config: False
    lists_pairs: bool = False
    draws_images: Callable[[TrainConfig], bool] = lambda config: False
    goes_both_ways: bool = False

    @property
    def uses_captions(self) -> bool:
        return self.uses_denoiser

    @property
    def keeps_old_model(self) -> bool:
        """Whether the original model's prediction is available during training."""
        return self.trains_adapters

    @property
    def preserves_images(self) -> bool:
        """Whether predictions for images can be held to the original model's."""
        return self.keeps_old_model and not self.compares

    def trains_text(self, config: TrainConfig) -> bool:
        """Whether a text encoder or one of its words trains, so that captions can't be cached."""
        return self.trains_words or (self.chooses_parts and config.text_encoder.train)


OTHER_ERRORS = ("mae", "huber", "smooth_l1", "log_cosh")
"""The settings of `loss` that weight errors other than the squared one."""


def _denoisers_with_lora(family: FamilyParts) -> tuple[str, ...]:
    return tuple(name for name in family.lora_targets if name in family.denoisers)


def has_images(config: TrainConfig) -> bool:
    """Whether there is a concept to train."""
    return any(concept.enabled for concept in config.concepts)


def _slider_prompts(config: TrainConfig) -> dict[str, str]:
    slider = config.slider
    if slider.source != "prompts":
        return {}
    prompts = {TARGET: slider.target.strip()}
    attributes = [text.strip() for text in slider.preserve.split(",") if text.strip()]
    for number, attribute in enumerate(attributes or [""]):
        for role, prompt in ((POSITIVE, slider.positive), (NEGATIVE, slider.negative)):
            prompts[f"{role} {number}"] = f"{attribute} {prompt.strip()}".strip()
    guided = slider.denoising_guidance > 1 and not has_images(config)
    return prompts | ({BLANK: ""} if guided else {})


METHODS: dict[str, MethodFacts] = {
    facts.name: facts
    for facts in (
        MethodFacts(
            name="lora",
            label="LoRA",
            trains="a small adapter for the model",
            trainable=lambda family: family.lora_targets,
            settings=("lora",),
            chooses_parts=True,
            trains_adapters=True,
            can_shard=True,
        ),
        MethodFacts(
            name="full",
            label="Full fine-tune",
            trains="the model itself",
            trainable=lambda family: (*family.denoisers, *family.trainable_text_encoders),
            chooses_parts=True,
            trains_weights=True,
            can_shard=True,
        ),
        MethodFacts(
            name="embedding",
            label="Embedding (textual inversion)",
            trains="the meaning of new words",
            trainable=lambda family: family.embedding_keys,
            settings=("embeddings",),
            trains_words=True,
            has_formats=False,
        ),
        MethodFacts(
            name="pivotal",
            label="LoRA and embedding (pivotal tuning)",
            trains="a small adapter and the meaning of new words",
            trainable=lambda family: (
                tuple(dict.fromkeys((*family.lora_targets, *family.embedding_keys))) if family.embedding_keys else ()
            ),
            settings=("lora", "embeddings"),
            chooses_parts=True,
            trains_adapters=True,
            trains_words=True,
        ),
        MethodFacts(
            name="slider",
            label="Concept slider",
            trains="a LoRA with more of something at positive strengths and less at negative ones",
            trainable=_denoisers_with_lora,
            settings=("lora", "slider"),
            chooses_parts=True,
            trains_adapters=True,
            compares=True,
            refuses_text=True,
            refused={"lora.dora": (False, "its strength can't be changed")},
            num_predictions=2,
            can_shard=True,
            prompts=_slider_prompts,
            pair_words=("weak image", "weak images"),
            takes_pairs=lambda config: config.slider.source == "pairs",
            draws_images=lambda config: config.slider.source == "prompts",
            goes_both_ways=True,
        ),
        MethodFacts(
            name="preference",
            label="Preference (DPO)",
            trains="a LoRA that prefers the chosen images of pairs",
            trainable=lambda family: family.lora_targets,
            settings=("lora", "preference"),
            chooses_parts=True,
            trains_adapters=True,
            compares=True,
            refused={
                "loss.weighting": ("constant", "its loss compares plain squared errors"),
                "loss.mse": (1.0, "its loss compares plain squared errors"),
                **{f"loss.{name}": (0.0, "its loss compares plain squared errors") for name in OTHER_ERRORS},
            },
            num_predictions=2,
            can_shard=True,
            pair_words=("rejected image", "rejected images"),
            takes_pairs=lambda config: True,
            lists_pairs=True,
        ),
        MethodFacts(
            name="vae",
            label="Autoencoder (VAE)",
            trains="the model's autoencoder",
            trainable=lambda family: (family.vae,) if family.can_train_vae else (),
            settings=("vae",),
            uses_denoiser=False,
            trains_weights=True,
        ),
    )
}
"""By name, in the order of the menu."""


def facts_of(config: TrainConfig) -> MethodFacts:
    """The facts of the method chosen in the settings."""
    return METHODS[config.method]


def fixed_prompts(config: TrainConfig) -> dict[str, str]:
    """Role -> prompt that the loss predicts for in each step, beside the captions; the same for all samples."""
    facts = facts_of(config)
    blank = {BLANK: ""} if facts.keeps_old_model and config.loss.blank_preservation else {}
    return {**facts.prompts(config), **blank}


def methods_for(family: FamilyParts) -> tuple[str, ...]:
    """The names of the methods that can train a family."""
    return tuple(facts.name for facts in METHODS.values() if facts.trainable(family))


def trainable_encoders(method: MethodFacts, family: FamilyParts) -> tuple[str, ...]:
    """The text encoders of a family that a method trains if `text_encoder.train` is on; none if that has no effect."""
    if not method.chooses_parts or method.refuses_text:
        return ()
    parts = family.lora_targets if method.trains_adapters else family.trainable_text_encoders
    return tuple(name for name in parts if name not in family.denoisers)


def methods_that(is_meant: Callable[[MethodFacts], bool]) -> list[str]:
    """The names of the methods that satisfy a condition, for the `visible_when` of a setting."""
    return [facts.name for facts in METHODS.values() if is_meant(facts)]


def methods_taking(path: str) -> dict[str, list[str]]:
    """The `visible_when` of a setting that some methods refuse, of those that use its section, according to their
    facts."""
    section = path.partition(".")[0]
    is_part = any(section in method.settings for method in METHODS.values())

    def takes(method: MethodFacts) -> bool:
        uses = section in method.settings if is_part else method.uses_denoiser
        return uses and path not in method.refused

    return {"method": methods_that(takes)}


def with_settings(part: str) -> dict[str, list[str]]:
    """The `visible_when` of a section that only some methods use, according to their facts."""
    return {"method": methods_that(lambda method: part in method.settings)}
