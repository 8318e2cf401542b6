"""What the dataset check has found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from modules.config.counted import counted

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


def finding_of(kind: str, level: Level, one: str, several: str, paths: Iterable[str], about_first: str = "") -> Finding:
    """The finding of these files, at least one.

    one, several: what the message says behind the number of files. about_first: what it adds to the first path.
    """
    paths = list(paths)
    message = f"{counted(len(paths), one, several)}, such as {paths[0]}{about_first}."
    return Finding(kind, level, message, len(paths), paths[:NUM_LISTED])
