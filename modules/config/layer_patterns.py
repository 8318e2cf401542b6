"""Which layers a part's patterns select: those of fnmatch, separated by commas, as in "*.attn2.*, mid_block"."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase


def split_patterns(text: str) -> list[str]:
    return [pattern.strip() for pattern in text.split(",") if pattern.strip()]


def matches_layer(name: str, pattern: str) -> bool:
    """Whether a pattern matches a layer, or one that it is in: "mid_block" means "mid_block.*", too."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def select_layers(names: Iterable[str], include: str, exclude: str) -> tuple[list[str], list[str]]:
    """(the names that the include patterns select, those of them that the exclude patterns leave)."""
    wanted, unwanted = split_patterns(include), split_patterns(exclude)
    included = [name for name in names if not wanted or any(matches_layer(name, pattern) for pattern in wanted)]
    return included, [name for name in included if not any(matches_layer(name, pattern) for pattern in unwanted)]


def has_ending(name: str, endings: Iterable[str]) -> bool:
    """Whether a layer has one of these names at the end of its own, such as "attn.to_q"."""
    return any(f".{name}".endswith(f".{ending}") for ending in endings)
