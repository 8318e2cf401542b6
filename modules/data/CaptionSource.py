"""Chooses the caption of a sample: one of several alternatives, with its tags shuffled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.data.caption_edits import joined_tags, three_parts, varies
from modules.data.draws import hash64, uniform

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.data.concepts import Dataset
    from modules.data.draws import Part


@dataclass(frozen=True, eq=False)
class CaptionSource:
    """Draws a caption by hash each time a sample is used.

    options: the alternative captions of each sample, at least one ("" for none).
    variants: number of tag orders per caption if its concept shuffles or drops tags, so that all can be cached.
        None draws a new order each time; the captions then can't be cached.
    """

    dataset: Dataset
    options: Sequence[tuple[str, ...]]
    seed: int
    variants: int | None

    def draw(self, sample: int, epoch: int, repeat: int) -> str:
        """The caption for one use of a sample."""
        parts = (self.seed, epoch, sample, repeat)
        options = self.options[sample]
        caption = options[0] if len(options) == 1 else options[_below(len(options), *parts, "caption")]
        concept = self.dataset.concepts[self.dataset.concept_index[sample]]
        if not varies(concept):
            return caption
        if self.variants is None:
            return shuffle_tags(caption, concept, *parts)
        return self._variant(caption, concept, _below(self.variants, *parts, "tag variant"))

    def all_texts(self) -> list[str]:
        """Every caption that `draw` can return, without duplicates, followed by "" for caption dropout.

        Raises ValueError if `variants` is None, because the captions are then unlimited.
        """
        if self.variants is None:
            raise ValueError("captions with unlimited tag orders can't be listed")
        texts: dict[str, None] = {}
        for options, number in zip(self.options, self.dataset.concept_index.tolist(), strict=True):
            concept = self.dataset.concepts[number]
            if not varies(concept):
                texts.update(dict.fromkeys(options))
                continue
            for caption in options:
                texts.update((self._variant(caption, concept, variant), None) for variant in range(self.variants))
        texts.pop("", None)
        return [*texts, ""]

    def _variant(self, caption: str, concept: ConceptConfig, variant: int) -> str:
        # seeded by the caption, not by the sample, so that equal captions share their cache entries
        return shuffle_tags(caption, concept, self.seed, caption, variant)


def shuffle_tags(caption: str, concept: ConceptConfig, *parts: Part) -> str:
    """`caption` with its tags shuffled and some dropped, as the concept asks for, by a hash of `parts`.

    Those that `keep_tags` or `kept_separator` keep stay in place.
    """
    first, others, last = three_parts(caption, concept)
    draw = hash64(*parts, "tags")
    positions: Sequence[int] = range(len(others))
    if concept.tag_dropout:
        positions = [position for position in positions if uniform(draw, position, "dropout") >= concept.tag_dropout]
    order = sorted(positions, key=lambda position: hash64(draw, position)) if concept.shuffle_tags else positions
    return joined_tags([*first, *(others[position] for position in order), *last], concept)


def _below(count: int, *draw: Part) -> int:
    """An integer from 0 to count - 1."""
    return int(uniform(*draw) * count)
