"""What all kinds of captioners have in common: images in, a text for each out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image

    from modules.annotators.captioner_kinds import CaptionerKind

MAX_TOKENS = 300  # some 220 words, more than any text encoder here was trained on
GENERAL_THRESHOLD = 0.35  # of the WD taggers' own demo, as are those of characters
CHARACTER_THRESHOLD = 0.85


@dataclass(frozen=True)
class Failure:
    """Why there is no text for one image, as a clause without a full stop."""

    reason: str


@dataclass(frozen=True)
class CaptionOptions:
    """What a person wants to read.

    style: one of the kind's; "" for its first. name: of the subject, for the style "subject". prompt: said to the model
    in place of the style's. max_tokens: the longest text. general_threshold, character_threshold: the least probability
    of a tag and of a character's name, of taggers. separator: between two tags.
    """

    style: str = ""
    name: str = ""
    prompt: str = ""
    max_tokens: int = MAX_TOKENS
    general_threshold: float = GENERAL_THRESHOLD
    character_threshold: float = CHARACTER_THRESHOLD
    separator: str = ", "


@dataclass(frozen=True)
class LocalModel:
    """A model on this machine that a captioner is made of.

    kind: as its files say. folder: with its files, which were checked. device: torch's. dtype: of its weights, torch's.
    on_gpu: whether a model that is not torch's may use a GPU. is_canceled: asked between two tokens; the text is then
    given up.
    """

    kind: CaptionerKind
    folder: Path
    device: Any = None
    dtype: Any = None
    on_gpu: bool = False
    is_canceled: Callable[[], bool] = field(default=lambda: False)


class Captioner(ABC):
    """A model that is loaded. Files of `kinds` have a subclass, called CAPTIONER, made of a LocalModel and options."""

    @abstractmethod
    def caption(self, items: Sequence[Sequence[Image.Image]]) -> list[str | Failure]:
        """A text for each item, which is one RGB image or the frames of one clip, in order.

        What is generated when the run is canceled is cut off; callers leave it.
        """

    @property
    def most_tokens(self) -> int | None:
        """The most tokens that a text of the model can have; None if that is not known."""
        return None


def middle(frames: Sequence[Image.Image]) -> Image.Image:
    """The frame that stands for a clip where a model sees single images only."""
    return frames[len(frames) // 2]
