"""The search over all settings, by their names here and elsewhere. No Tk."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from modules.config.describe import SettingInfo, settings_by_path
from modules.config.explain import FOREIGN_NAMES

MIN_STEM = 3
MIN_INSIDE = 3  # letters of a word that may be found inside other words, of names alone
ENDINGS = ("ing", "ed", "es", "s", "e")


@dataclass(frozen=True)
class _Searched:
    """The words of a setting.

    path, label, help: of these. name_in_files: of the path's last part. names: what it is called here, each name as
    words. others_exactly: the same elsewhere. place: of its section and path. others: of its names elsewhere. choices:
    of its choices.
    """

    path: tuple[str, ...]
    name_in_files: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    others_exactly: tuple[tuple[str, ...], ...]
    label: tuple[str, ...]
    place: tuple[str, ...]
    others: tuple[str, ...]
    choices: tuple[str, ...]
    help: tuple[str, ...]


def find_settings(text: str) -> list[str]:
    """The paths of the settings that contain every word of `text`, in this order: those that are called exactly so,
    here and then in other programs; those whose label starts with it, contains its words, or their beginnings; those
    with it in their section, path or other names; those with such a choice; those with it in their help text.

    Of the same rank, basic settings come first. Words are never looked for inside those of a help text.
    """
    words = _words(text)
    if not words:
        return []
    ranked: list[tuple[int, bool, int, str]] = []
    for number, (path, searched) in enumerate(_searched().items()):
        rank = _rank(words, searched)
        if rank is not None:
            is_advanced = settings_by_path()[path].importance == "advanced"
            ranked.append((rank, is_advanced, number, path))
    return [path for *_, path in sorted(ranked)]


def _rank(words: tuple[str, ...], searched: _Searched) -> int | None:
    """0 is best; None: not found."""
    label, names = searched.label, (*searched.label, *searched.place, *searched.others)
    stems, everything = set(map(_stem, words)), (*names, *searched.choices, *searched.help)
    tiers = (
        words == searched.path,
        words in searched.names,
        words == searched.name_in_files,
        words in searched.others_exactly,
        label[: len(words)] == words,
        " ".join(label).startswith(" ".join(words)),
        set(words) <= set(label),
        stems <= set(map(_stem, label)),
        _are_begun(words, label),
        set(words) <= {*label, *searched.place} and not set(words).isdisjoint(label),
        set(words) <= set(names),
        _are_begun(words, names),
        set(words) <= {*names, *searched.choices},
        _are_begun(words, (*names, *searched.choices)),
        _are_inside(words, names),
        stems <= set(map(_stem, everything)),
    )
    return next((rank for rank, applies in enumerate(tiers) if applies), None)


def _are_begun(words: Iterable[str], others: tuple[str, ...]) -> bool:
    """Whether each word is the beginning of another."""
    return all(any(other.startswith(word) for other in others) for word in words)


def _are_inside(words: Iterable[str], others: tuple[str, ...]) -> bool:
    return all(len(word) >= MIN_INSIDE and any(word in other for other in others) for word in words)


def _stem(word: str) -> str:
    """The word without its usual English endings, so that "shuffling" is found in "Shuffle tags"."""
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= MIN_STEM:
            return word.removesuffix(ending)
    return word


@lru_cache(maxsize=1)
def _searched() -> dict[str, _Searched]:
    foreign: dict[str, list[str]] = {}
    for name, ours in FOREIGN_NAMES.items():
        foreign.setdefault(ours.split()[0], []).append(name)
    infos = settings_by_path().items()
    return {path: _of(info, foreign.get(path, [])) for path, info in infos if path != "config_version"}


def _of(info: SettingInfo, foreign: Iterable[str]) -> _Searched:
    outside, _, inside = info.label.partition("(")  # "Rank (network dim)" is called Rank, and network dim
    names = [info.label, outside, inside, info.path.replace("[]", "")]
    names += [f"{info.section} {info.label}", f"{info.section} {outside}"] if info.section else []
    others = [*foreign, *re.split(r"[,;]", info.also_called)]
    labels = info.choice_labels.items()
    in_one_word = [re.sub(r"\W", "", label) for _, label in labels]  # AdamW8bit for AdamW, 8-bit
    choices = [*in_one_word, *(text for choice, label in labels for text in (choice, label))]
    return _Searched(
        _words(info.path),
        _words(info.path.rpartition(".")[2]),
        tuple({_words(name) for name in names} - {()}),
        tuple({_words(name) for name in others} - {()}),
        _words(info.label),
        _words(f"{info.section} {info.path}"),
        _words(" ".join(others)),
        _words(" ".join(choices)),
        _words(info.help),
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[^\W_]+\+?", text.lower()))
