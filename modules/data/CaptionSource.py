"""Which caption a sample is shown with: one of several, and its tags in an order of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.data.draws import hash64, uniform

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.data.concepts import Dataset
    from modules.data.draws import Part


@dataclass(frozen=True, eq=False)
class CaptionSource:
    """Draws the caption of each showing by hash.

    options: the captions of each sample, at least one ("" for none).
    variants: how many orders each caption has where its concept shuffles tags, so that all of them can be cached;
        None: an order of its own for every showing, where nothing is cached.
    """

    dataset: Dataset
    options: Sequence[tuple[str, ...]]
    seed: int
    variants: int | None

    def draw(self, sample: int, epoch: int, repeat: int) -> str:
        """The caption of one showing."""
        showing = (self.seed, epoch, sample, repeat)
        options = self.options[sample]
        caption = options[0] if len(options) == 1 else options[_below(len(options), *showing, "caption")]
        concept = self.dataset.concepts[self.dataset.concept_index[sample]]
        if not concept.shuffle_tags:
            return caption
        if self.variants is None:
            return shuffle_tags(caption, concept, *showing)
        return self._variant(caption, concept, _below(self.variants, *showing, "tag variant"))

    def all_texts(self) -> list[str]:
        """Every caption that `draw` may give, each once, and "" last: what caption dropout puts in its place.

        Raises ValueError where every showing has a caption of its own.
        """
        if self.variants is None:
            raise ValueError("the captions of all showings can't be listed")
        texts: dict[str, None] = {}
        for options, number in zip(self.options, self.dataset.concept_index.tolist(), strict=True):
            concept = self.dataset.concepts[number]
            if not concept.shuffle_tags:
                texts.update(dict.fromkeys(options))
                continue
            for caption in options:
                texts.update((self._variant(caption, concept, variant), None) for variant in range(self.variants))
        texts.pop("", None)
        return [*texts, ""]

    def _variant(self, caption: str, concept: ConceptConfig, variant: int) -> str:
        # by the caption, not by the sample: equal captions share their variants in the cache
        return shuffle_tags(caption, concept, self.seed, caption, variant)


def shuffle_tags(caption: str, concept: ConceptConfig, *parts: Part) -> str:
    """`caption` with its tags in an order drawn from `parts`, some left out; the first `keep_tags` stay as they are."""
    tags = [tag for tag in map(str.strip, caption.split(concept.tag_separator)) if tag]
    kept, others = tags[: concept.keep_tags], tags[concept.keep_tags :]
    draw = hash64(*parts, "tags")
    positions = range(len(others))
    if concept.tag_dropout:
        positions = [position for position in positions if uniform(draw, position, "dropout") >= concept.tag_dropout]
    order = sorted(positions, key=lambda position: hash64(draw, position))
    separator = concept.tag_separator if concept.tag_separator.isspace() else f"{concept.tag_separator.strip()} "
    return separator.join([*kept, *(others[position] for position in order)])


def _below(count: int, *draw: Part) -> int:
    """A whole number from 0 to count - 1."""
    return int(uniform(*draw) * count)
