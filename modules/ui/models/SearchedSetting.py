"""The words of one setting, as the search compares them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

from modules.config.describe import SettingInfo
from modules.ui.models.search_words import Words, in_one_word, stem, words_of

MIN_INSIDE = 3  # letters of a word that may be found inside other words, of names alone

EXACT_RANKS = 5  # so many ranks are of names that are exactly the words


class SearchedSetting:
    """What a setting is called, here and elsewhere, in words.

    label, help, path: of these. place: of its section and path. choices: of its choices. elsewhere: the other names,
    each as words. names: all words of label, place and other names.
    """

    def __init__(self, info: SettingInfo, foreign_names: Iterable[str]):
        self.info = info
        self.label, self.help, self.path = map(words_of, (info.label, info.help, info.path))
        self.place = words_of(f"{info.section} {info.path}")
        others = (*foreign_names, *re.split(r"[,;]", info.also_called))
        self.elsewhere = [words for name in others if (words := words_of(name))]
        self.names = (*self.label, *self.place, *(word for name in self.elsewhere for word in name))
        self._name_in_files = words_of(info.path.rpartition(".")[2])
        self._own_names = set(map(in_one_word, map(words_of, _own_names(info))))
        self._other_names = set(map(in_one_word, self.elsewhere))
        texts = [words_of(text) for pair in info.choice_labels.items() for text in pair]
        self._choices = set(map(in_one_word, texts))  # AdamW8bit is AdamW, 8-bit
        self.choices = tuple({*(word for words in texts for word in words), *self._choices})
        self._label_stems, self._name_stems, self._place_words = _stems(self.label), _stems(self.names), set(self.place)
        self._stems_elsewhere = [_stems(name) for name in self.elsewhere]

    @cached_property
    def stems(self) -> set[str]:
        """Of all words: names, choices and help."""
        return self._name_stems | _stems(self.choices) | _stems(self.help)

    @property
    def names_in_one_word(self) -> set[str]:
        return self._own_names | self._other_names

    def rank(self, words: Words) -> int | None:
        """How well all of `words` match, 0 best. None if they don't all match in one way."""
        one_word, stems, wanted = in_one_word(words), _stems(words), set(words)
        tiers = (
            lambda: words == self.path,
            lambda: one_word in self._own_names,
            lambda: words == self._name_in_files,
            lambda: one_word in self._other_names,
            lambda: one_word in self._choices,  # the last of EXACT_RANKS
            lambda: self.label[: len(words)] == words,
            lambda: " ".join(self.label).startswith(" ".join(words)),
            lambda: wanted <= set(self.label),
            lambda: stems <= self._label_stems,
            lambda: _are_begun(words, self.label),
            lambda: wanted <= self._place_words | set(self.label) and not wanted.isdisjoint(self.label),
            lambda: any(stems <= other for other in self._stems_elsewhere),
            lambda: wanted <= set(self.names),
            lambda: _are_begun(words, self.names),
            lambda: wanted <= {*self.names, *self.choices},
            lambda: _are_begun(words, (*self.names, *self.choices)),
            lambda: _are_inside(words, self.names),
            lambda: stems <= self.stems,
        )
        return next((rank for rank, applies in enumerate(tiers) if applies()), None)

    def matches(self, word: str) -> int:
        """How well one word matches a name or choice: 3 in the label, 2 in another name, 1 in a choice, 0 not."""
        if stem(word) in self._label_stems:
            return 3
        if stem(word) in self._name_stems:
            return 2
        return int(_are_begun((word,), self.choices))


def _own_names(info: SettingInfo) -> Iterable[str]:
    outside, _, inside = info.label.partition("(")  # "Rank (network dim)" is called Rank, and network dim
    yield from (info.label, outside, inside.strip(") ") or info.label, info.path.replace("[]", ""))
    if info.section:
        yield from (f"{info.section} {info.label}", f"{info.section} {outside}")


def _stems(words: Iterable[str]) -> set[str]:
    return set(map(stem, words))


def _are_begun(words: Iterable[str], others: Iterable[str]) -> bool:
    """Whether each word is the beginning of another."""
    return all(any(other.startswith(word) for other in others) for word in words)


def _are_inside(words: Iterable[str], others: Iterable[str]) -> bool:
    return all(len(word) >= MIN_INSIDE and any(word in other for other in others) for word in words)
