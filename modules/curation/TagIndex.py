"""The tags of a dataset with their counts: which there are, which a person may mean, and which look misspelled."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from modules.curation.TagList import clean, folded, tags_of

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig

MAX_DISTANCE = 2  # letters that a misspelled tag differs in
SHORT = 6  # up to so many letters it is one: "cat" and "cow" are different words
RARER = 5  # a misspelled tag is at least so many times as rare as the right one


@dataclass(frozen=True)
class TagCount:
    """A tag in its most frequent spelling, and in how many images' captions it is."""

    tag: str
    count: int


@dataclass(frozen=True)
class Misspelling:
    """A rare tag that differs little from a frequent one."""

    tag: TagCount
    meant: TagCount


class TagIndex:
    """Which images have which tags, kept up to date by `put`. Upper and lower case are one tag."""

    def __init__(self, concept: ConceptConfig):
        self._concept = concept
        self._per_line = concept.captions == "table" or concept.caption_per_line
        self._tags_of: dict[str, list[str]] = {}  # image -> its tags as they are written
        self._images: dict[str, set[str]] = defaultdict(set)  # folded tag -> images
        self._spellings: dict[str, Counter[str]] = defaultdict(Counter)

    def put(self, image: str, text: str) -> None:
        """Set the caption of an image, as in `Caption.text`; "" takes it out."""
        for tag in self._tags_of.pop(image, ()):
            self._count(tag, -1)
            self._images[folded(tag)].discard(image)
        captions = text.split("\n") if self._per_line else [text]
        tags = [tag for caption in captions for tag in tags_of(caption, self._concept)]
        if tags:
            self._tags_of[image] = tags
        for tag in tags:
            self._count(tag, 1)
            self._images[folded(tag)].add(image)

    @property
    def counts(self) -> dict[str, int]:
        """Folded tag -> in how many images' captions it is."""
        return {key: len(images) for key, images in self._images.items() if images}

    def all(self) -> list[TagCount]:
        """All tags, the most frequent first."""
        return self._sorted(key for key, images in self._images.items() if images)

    def images_with(self, tag: str) -> frozenset[str]:
        return frozenset(self._images.get(folded(tag), ()))

    def suggest(self, typed: str, limit: int = 10) -> list[TagCount]:
        """Tags that a person who has typed this may mean.

        First those that begin with it, then those of which a later word does, then those that are spelled nearly so;
        of each the most frequent first.
        """
        start = folded(typed)
        if not start:
            return self.all()[:limit]
        keys = [key for key, images in self._images.items() if images]
        beginning = self._sorted(key for key in keys if key.startswith(start))
        inside = self._sorted(key for key in keys if not key.startswith(start) and _has_word(key, start))
        found = [*beginning, *inside][:limit]
        if len(found) < limit:
            found += self._near(start, {folded(one.tag) for one in found})[: limit - len(found)]
        return found

    def misspellings(self) -> list[Misspelling]:
        """Tags that look like misspellings of others, the clearest first.

        A rare tag that differs in one or two letters from one that is at least RARER times as frequent; numbers, as in
        "2girls", are no letters. The first or the last letter is right, which makes this fast.
        """
        found = []
        tags = self.all()
        alike: dict[tuple[int, str], list[TagCount]] = defaultdict(list)  # the most frequent first
        for one in tags:
            if one.count >= RARER:
                for place in _places(folded(one.tag)):
                    alike[place].append(one)
        for rare in tags:
            key = folded(rare.tag)
            near: list[TagCount] = []
            for place in _places_near(key):
                frequent = takewhile(lambda one: one.count >= RARER * rare.count, alike.get(place, ()))  # noqa: B023
                near += islice((one for one in frequent if _is_misspelled(key, folded(one.tag))), 1)
            if near:
                found.append(Misspelling(rare, max(near, key=lambda one: one.count)))
        return sorted(found, key=lambda one: (-one.meant.count / one.tag.count, one.tag.tag))

    def _near(self, typed: str, known: set[str]) -> list[TagCount]:
        keys = (key for key, images in self._images.items() if images and key not in known)
        return self._sorted(key for key in keys if _is_misspelled(typed, key))

    def _sorted(self, keys: Iterable[str]) -> list[TagCount]:
        counts = (TagCount(self._spellings[key].most_common(1)[0][0], len(self._images[key])) for key in keys)
        return sorted(counts, key=lambda one: (-one.count, one.tag))

    def _count(self, tag: str, change: int) -> None:
        spellings = self._spellings[folded(tag)]
        spellings[clean(tag)] += change
        if not spellings[clean(tag)]:
            del spellings[clean(tag)]


def _has_word(key: str, start: str) -> bool:
    return any(f"{mark}{start}" in key for mark in " _-(")


def _places(key: str) -> set[tuple[int, str]]:
    """Where a tag is looked for: by its length and first letter, or by its length and last letter."""
    return {(len(key), f"{key[0]}-"), (len(key), f"-{key[-1]}")}


def _places_near(key: str) -> Iterator[tuple[int, str]]:
    """The places of tags that may be the same one with a few letters wrong."""
    most = _most_wrong(key)
    for length in range(max(1, len(key) - most), len(key) + most + 1):
        yield from ((length, f"{key[0]}-"), (length, f"-{key[-1]}"))


def _most_wrong(key: str) -> int:
    return 1 if len(key) <= SHORT else MAX_DISTANCE


def _is_misspelled(one: str, other: str) -> bool:
    """Whether two different tags may be the same one, of which a few letters are wrong."""
    most = _most_wrong(one)
    if one == other or abs(len(one) - len(other)) > most or min(len(one), len(other)) < 4:
        return False
    if len(set(one) ^ set(other)) > 2 * most:  # which is fast, and true of nearly all
        return False
    if any(letter.isdigit() for letter in one + other) and _digits(one) != _digits(other):
        return False
    return _distance(one, other, most) <= most


def _digits(text: str) -> list[str]:
    return [letter for letter in text if letter.isdigit()]


def _distance(one: str, other: str, most: int) -> int:
    """How many letters are added, left out, wrong or swapped with their neighbour; `most` + 1 if it is more.

    Source: the optimal string alignment distance of Damerau 1964 and Levenshtein 1966.
    """
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, wanted in enumerate(other, 1):
            costs = [last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != wanted)]
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                costs.append(before[j - 2] + 1)
            row.append(min(costs))
        if min(row) > most:
            return most + 1
        before, last = last, row
    return last[-1]
