"""Chooses the caption of a sample: one of several alternatives, with its tags shuffled."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.data.caption_edits import class_caption, joined_tags, may_be_dropped, three_parts, varies, with_open_groups
from modules.data.draws import hash64, uniform

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.data.Dataset import Dataset
    from modules.data.draws import Part


@dataclass(frozen=True, eq=False)
class CaptionSource:
    """Draws a caption by hash each time a sample is used.

    options: the alternative captions of each sample, at least one ("" for none).
    variants: number of tag orders per caption if its concept shuffles or drops tags, so that all can be cached.
        None draws a new order each time; the captions then can't be cached.
    preserves: whether captions with the class in place of the trigger word are used, too (`class_of`).
    words: placeholders that are trained: tags with one of them are neither left out nor capitalized.
    fixed: further prompts that are used with every sample.
    """

    dataset: Dataset
    options: Sequence[tuple[str, ...]]
    seed: int
    variants: int | None
    preserves: bool = False
    words: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()

    def class_of(self, caption: str, sample: int) -> str | None:
        """What `draw` has returned for a sample with the class in place of its trigger word, if it contains that."""
        return class_caption(caption, self.dataset.concepts[self.dataset.concept_index[sample]])

    def draw(self, sample: int, epoch: int, repeat: int) -> str:
        """The caption for one use of a sample."""
        parts = (self.seed, epoch, sample, repeat)
        options = self.options[sample]
        caption = options[0] if len(options) == 1 else options[_below(len(options), *parts, "caption")]
        concept = self.dataset.concepts[self.dataset.concept_index[sample]]
        if not varies(concept):
            return caption
        if self.variants is None:
            return shuffle_tags(caption, concept, *parts, words=self.words)
        return self._variant(caption, concept, _below(self.variants, *parts, "tag variant"))

    def all_texts(self) -> list[str]:
        """Every caption that is used, without duplicates, followed by "" for caption dropout.

        Raises ValueError if `variants` is None, because the captions are then unlimited.
        """
        texts = dict.fromkeys(text for sample in range(len(self.options)) for text in self._texts_of(sample))
        texts |= dict.fromkeys(self.fixed)
        texts.pop("", None)
        return [*texts, ""]

    def texts_by_sample(self, with_empty: bool) -> list[tuple[str, int]]:
        """Every (caption, sample id) that is used, without duplicates, one sample after the other.

        with_empty: whether each sample needs "", for caption dropout.
        Raises ValueError like `all_texts`.
        """
        ends = (*self.fixed, *(("",) if with_empty else ()))
        return [
            (text, sample)
            for sample in range(len(self.options))
            for text in dict.fromkeys((*self._texts_of(sample), *ends))
        ]

    def _texts_of(self, sample: int) -> Iterator[str]:
        """The captions of a sample that are used; some may repeat."""
        if self.variants is None:
            raise ValueError("captions with unlimited tag orders can't be listed")
        concept = self.dataset.concepts[self.dataset.concept_index[sample]]
        drawn = self.options[sample]
        if varies(concept):
            variants = itertools.product(drawn, range(self.variants))
            drawn = tuple(self._variant(caption, concept, variant) for caption, variant in variants)
        yield from drawn
        if self.preserves:
            of_class = (class_caption(caption, concept) for caption in drawn)
            yield from (caption for caption in of_class if caption is not None)

    def _variant(self, caption: str, concept: ConceptConfig, variant: int) -> str:
        # seeded by the caption, not by the sample, so that equal captions share their cache entries
        return shuffle_tags(caption, concept, self.seed, caption, variant, words=self.words)


def shuffle_tags(caption: str, concept: ConceptConfig, *parts: Part, words: tuple[str, ...] = ()) -> str:
    """`caption` with its tags shuffled, some dropped and some capitalized, as the concept asks, by a hash of `parts`.

    Those that `keep_tags` or `kept_separator` keep stay as they are. Those with one of `words` are only shuffled.
    """
    first, others, last = three_parts(caption, concept)
    draw = hash64(*parts, "tags")
    # the placeholder of a word to be learnt is only known in its exact spelling, and no step may go without it
    fixed = {position for position, tag in enumerate(others) if any(word in tag for word in words)}
    positions = _not_dropped(others, concept, draw, fixed)
    if concept.shuffle_tags:
        positions = sorted(positions, key=lambda position: hash64(draw, position))
    shown = [
        tag if position in fixed else _capitalized(tag, concept, hash64(draw, position, "case"))
        for position, tag in ((position, others[position]) for position in positions)
    ]
    return with_open_groups(joined_tags([*first, *shown, *last], concept), concept)


def _not_dropped(tags: list[str], concept: ConceptConfig, draw: int, fixed: Set[int]) -> list[int]:
    """The positions of the tags that tag dropout leaves, by the hash `draw`. fixed: of those that it always leaves."""
    rate, positions = concept.tag_dropout, range(len(tags))
    if not rate:
        return list(positions)
    mode, last = concept.tag_dropout_mode, max(1, len(tags) - 1)

    def is_left(position: int) -> bool:
        drawn = uniform(draw, "dropout") if mode == "all" else uniform(draw, position, "dropout")
        own_rate = rate * position / last if mode == "later" else rate
        return drawn >= own_rate or position in fixed or not may_be_dropped(tags[position], concept)

    return [position for position in positions if is_left(position)]


def _capitalized(tag: str, concept: ConceptConfig, draw: int) -> str:
    """`tag` in the concept's random capitalization, or as it is, by the hash `draw`."""
    style = concept.capitalization
    if style == "off" or uniform(draw, "changes") >= concept.capitalization_share:
        return tag
    if style == "any":
        style = ("upper", "title", "first", "random")[_below(4, draw, "style")]
    if style == "upper":
        return tag.upper()
    if style == "title":
        return tag.title()
    if style == "first":
        return tag[:1].upper() + tag[1:]
    letters = (letter.upper() if hash64(draw, number) % 2 else letter.lower() for number, letter in enumerate(tag))
    return "".join(letters)


def _below(count: int, *draw: Part) -> int:
    """An integer from 0 to count - 1."""
    return int(uniform(*draw) * count)
