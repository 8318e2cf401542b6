"""What every part of Chorus may know of the training methods: facts, without torch.

A method is one row here and one file, `modules/methods/NAME.py`, which trains it. Nobody else compares a method's name:
whoever needs to know something of the chosen method asks its facts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig


class FamilyParts(Protocol):
    """What a method may ask of a family to say which of its components it can train: Family and FamilyInfo have it.

    Components are named as in the family's pipeline. lora_targets: those that adapters can be put on. embedding_keys:
    the text encoders that learn new words.
    """

    denoisers: Collection[str]
    text_encoders: Collection[str]
    vae: str
    can_train_vae: bool
    lora_targets: Collection[str]
    embedding_keys: Collection[str]


@dataclass(frozen=True)
class MethodFacts:
    """One method.

    name: as in settings files. label: as people know it. trains: what it trains, in a few words.
    trainable: family -> the components of its models that the method can train; none where it can't train the family.
    settings: the parts of TrainConfig that are for this method alone.
    uses_denoiser: whether it trains by what the denoiser predicts, from cached latents, noise and captions. Others
        train on pixels, and the settings of captions, noise and loss are not for them.
    chooses_parts: whether the settings `denoiser` and `text_encoder` say what trains.
    trains_weights: whether the model's own weights train, in their own precision. What other methods train is added to
        the model, in float32 at least.
    trains_adapters: whether adapters train, as `lora` describes them: the model stays available as it was.
    trains_words: whether the words of `embeddings` train, in all text encoders.
    has_formats: whether `output.format` says in which formats the result is written.
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

    @property
    def uses_captions(self) -> bool:
        return self.uses_denoiser

    @property
    def keeps_old_model(self) -> bool:
        """Whether the training can ask what the model predicted before it."""
        return self.trains_adapters

    def trains_text(self, config: TrainConfig) -> bool:
        """Whether a text encoder, or a word in it, changes with each step, so that no caption can be cached."""
        return self.trains_words or (self.chooses_parts and config.text_encoder.train)


METHODS: dict[str, MethodFacts] = {
    facts.name: facts
    for facts in (
        MethodFacts(
            name="lora",
            label="LoRA",
            trains="a small adapter beside the model",
            trainable=lambda family: family.lora_targets,
            settings=("lora",),
            chooses_parts=True,
            trains_adapters=True,
        ),
        MethodFacts(
            name="full",
            label="Full training",
            trains="the model itself",
            trainable=lambda family: (*family.denoisers, *family.text_encoders),
            chooses_parts=True,
            trains_weights=True,
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
"""By name, in the order in which they are offered."""


def facts_of(config: TrainConfig) -> MethodFacts:
    """The facts of the method that the settings choose."""
    return METHODS[config.method]


def methods_for(family: FamilyParts) -> tuple[str, ...]:
    """The names of the methods that can train a family."""
    return tuple(facts.name for facts in METHODS.values() if facts.trainable(family))


def methods_that(is_meant: Callable[[MethodFacts], bool]) -> list[str]:
    """The names of the methods of a kind, for the `visible_when` of a setting."""
    return [facts.name for facts in METHODS.values() if is_meant(facts)]


def with_settings(part: str) -> dict[str, list[str]]:
    """The `visible_when` of a part of the settings that is there for some methods alone, as their facts say."""
    return {"method": methods_that(lambda method: part in method.settings)}
