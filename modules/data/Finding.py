"""What the dataset check has found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

NUM_LISTED = 1000

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """All findings of one kind.

    kind: an identifier for programs. level: "error" if training would fail. message: one sentence.
    count: the number of affected items. paths: the first NUM_LISTED affected files.
    """

    kind: str
    level: Level
    message: str
    count: int = 1
    paths: list[str] = field(default_factory=list)


def finding_of(kind: str, level: Level, message: str, paths: Iterable[str]) -> Finding:
    """The finding of these files.

    message: the sentence without the number of `paths`, which it starts with, and the full stop.
    """
    paths = list(paths)
    return Finding(kind, level, f"{len(paths)} {message}.", len(paths), paths[:NUM_LISTED])
