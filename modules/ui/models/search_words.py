"""The words of a search: how a text is split, and which words count as the same."""

from __future__ import annotations

import re
from collections.abc import Iterable

MIN_STEM = 3
MIN_CORRECTED = 5  # letters; in a shorter word one letter makes another word
ENDINGS = ("ing", "ed", "es", "s", "e")
STOP_WORDS = frozenset(("a", "an", "and", "at", "for", "from", "in", "is", "n", "of", "on", "or", "the", "to"))

Words = tuple[str, ...]


def words_of(text: str) -> Words:
    """The words in lower case, without punctuation and stop words; the stop words if there are no others."""
    words = tuple(re.findall(r"[^\W_]+\+?", text.lower()))
    return tuple(word for word in words if word not in STOP_WORDS) or words


def in_one_word(words: Words) -> str:
    """Without blanks, since "low vram" is "lowvram" elsewhere."""
    return "".join(words)


def stem(word: str) -> str:
    """The word without its usual English endings, so that "shuffling" is found in "Shuffle tags"."""
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= MIN_STEM:
            return word.removesuffix(ending)
    return word


def corrected(word: str, vocabulary: Iterable[str]) -> str:
    """The first word of `vocabulary` that differs in one letter, which is missing, too many, another, or swapped with
    its neighbor; the word itself if there is none, or if it has fewer than five letters."""
    if len(word) < MIN_CORRECTED:
        return word
    return next((other for other in vocabulary if _differ_by_one(word, other)), word)


def _differ_by_one(word: str, other: str) -> bool:
    if abs(len(word) - len(other)) > 1 or (word[0] != other[0] and word[-1] != other[-1]):
        return False
    start = next((at for at, (one, two) in enumerate(zip(word, other, strict=False)) if one != two), len(word))
    rest, other_rest = word[start:], other[start:]
    swapped = rest[1::-1] + rest[2:]
    return rest[1:] == other_rest[1:] or rest[1:] == other_rest or rest == other_rest[1:] or swapped == other_rest
