"""The search over all settings, by their names here and elsewhere. No Tk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from modules.config.describe import settings_by_path
from modules.config.other_programs import foreign_names, window_labels
from modules.ui.models.explanations import Row, explanations
from modules.ui.models.search_words import Words, corrected, stem, words_of
from modules.ui.models.SearchedSetting import EXACT_RANKS, MIN_INSIDE, SearchedSetting

MAX_ROWS = 12
_Order = tuple[int, ...]  # less is better


def find_settings(text: str) -> list[str]:
    """The paths of the settings that `text` may mean, the best first.

    Settings that contain every word come in this order: those that are called exactly so, here, in other programs, or
    by a choice; those whose label starts with it, contains its words, or their beginnings; those with it in their
    section, path or other names; those with such choices; those with it in their help text. If there is none, one
    letter of each unknown word may be wrong; then most words are enough. Basic settings come first among equals.
    Stop words and punctuation don't count. Words are never looked for inside those of a help text.
    """
    return _find(text)[0]


def search(text: str) -> list[Row]:
    """What the search shows for `text`: the settings found, and explanations of what has no setting.

    Explanations that are called exactly so come first, unless a setting is.
    """
    paths, is_called_so = _find(text)
    settings = [Row(path) for path in paths]
    exactly, others = explanations(text)
    first, last = ([], [*exactly, *others]) if is_called_so else (exactly, others)
    return [*first, *settings[: MAX_ROWS - len(first) - len(last)], *last]


def prepare_search() -> None:
    """Read what the search needs, which takes a moment the first time."""
    _index()


def _find(text: str) -> tuple[list[str], bool]:
    """The paths, and whether the first setting is called exactly so."""
    words = words_of(text)
    if not words:
        return [], False
    index = _index()
    found = _with_all(words, index)
    if not found:
        words = tuple(word if index.having(word) else corrected(word, index.vocabulary) for word in words)
        found = _with_all(words, index)
    outside, opened, _ = text.partition("(")
    if not found and opened and words_of(outside):  # "Max Token Length (75)"
        return _find(outside)
    found = found or _with_most(words, index)
    paths = sorted(found, key=found.__getitem__)
    return paths, bool(paths) and found[paths[0]][0] in range(EXACT_RANKS)


@dataclass(frozen=True)
class _Index:
    """The settings, and where words stand.

    names, choices, stems: word -> the numbers of the settings with it; `stems` has those of help texts, too.
    vocabulary: the words of names and choices, the most frequent first.
    """

    settings: tuple[SearchedSetting, ...]
    names: Mapping[str, set[int]]
    choices: Mapping[str, set[int]]
    stems: Mapping[str, set[int]]
    vocabulary: tuple[str, ...]

    def having(self, word: str) -> set[int]:
        """The numbers of the settings that contain `word` in any way."""
        found = set(self.stems.get(stem(word), ()))
        for other, numbers in self.names.items():
            if other.startswith(word) or (len(word) >= MIN_INSIDE and word in other):
                found |= numbers
        for other, numbers in self.choices.items():
            if other.startswith(word):
                found |= numbers
        return found


def _with_all(words: Words, index: _Index) -> dict[str, _Order]:
    numbers = set.intersection(*map(index.having, words))
    ranks = {number: index.settings[number].rank(words) for number in numbers}
    return _by_path(index, {number: (rank,) for number, rank in ranks.items() if rank is not None})


def _with_most(words: Words, index: _Index) -> dict[str, _Order]:
    """The settings that have more than half of the words in their names or choices, those with more first."""
    counts = Counter(number for word in words for number in index.having(word))
    ranks = {}
    for number in [number for number, count in counts.items() if 2 * count > len(words)]:
        matches = [index.settings[number].matches(word) for word in words]
        if 2 * (count := sum(map(bool, matches))) > len(words):
            ranks[number] = (-count, -sum(matches))
    return _by_path(index, ranks)


def _by_path(index: _Index, ranks: Mapping[int, tuple[int, ...]]) -> dict[str, _Order]:
    infos = {number: index.settings[number].info for number in ranks}
    return {
        infos[number].path: (*rank, infos[number].importance == "advanced", number) for number, rank in ranks.items()
    }


@lru_cache(maxsize=1)
def _index() -> _Index:
    foreign, labels = foreign_names(), window_labels()
    infos = (info for path, info in settings_by_path().items() if path != "config_version")
    settings = tuple(SearchedSetting(info, (*foreign.get(info.path, ()), *labels.get(info.path, ()))) for info in infos)
    names = _numbers((*setting.names, *setting.names_in_one_word) for setting in settings)
    choices = _numbers(setting.choices for setting in settings)
    frequency = {word: len(names.get(word, ())) + len(choices.get(word, ())) for word in names | choices}
    vocabulary = tuple(sorted(frequency, key=lambda word: (-frequency[word], word)))
    return _Index(settings, names, choices, _numbers(setting.stems for setting in settings), vocabulary)


def _numbers(words_of_settings: Iterable[Iterable[str]]) -> dict[str, set[int]]:
    numbers: dict[str, set[int]] = {}
    for number, words in enumerate(words_of_settings):
        for word in words:
            numbers.setdefault(word, set()).add(number)
    return numbers
