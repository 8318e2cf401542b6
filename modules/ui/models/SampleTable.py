"""The samples of a run as a table: a row for each prompt and seed, a column for each step. No Tk."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modules.ui.models.RunState import SamplePicture

# What trainer/SampleRound.py calls the files of a round: 003_a red fox_seed42.png
_FILE_NAME = re.compile(r"^\d+_(?P<title>.*_seed(?P<seed>\d+))$", re.DOTALL)


@dataclass(frozen=True)
class SampleRow:
    """prompt: as it was written. seed: None where the file's name does not tell. repeat: which of several alike."""

    prompt: str
    seed: int | None
    repeat: int = 0

    @property
    def title(self) -> str:
        """The prompt in one line."""
        return " ".join(self.prompt.split()) or "(no prompt)"

    @property
    def seed_text(self) -> str:
        return "" if self.seed is None else f"seed {self.seed}"


@dataclass(frozen=True)
class SampleTable:
    """rows: in the order of the newest round, then those that only older rounds have. steps: rising.

    paths: of the pictures that were made, by (row, step); a cell may be empty.
    """

    rows: tuple[SampleRow, ...]
    steps: tuple[int, ...]
    paths: dict[tuple[SampleRow, int], str]

    def path(self, row: int, column: int) -> str | None:
        """The picture in a cell, None if there is none."""
        return self.paths.get((self.rows[row], self.steps[column]))


def arrange_samples(samples: Iterable[SamplePicture]) -> SampleTable:
    """The table of a run's samples, in any order; a picture that was made again counts once.

    Rows go by prompt and seed, not by the number in a file's name, which changes when prompts are added or removed.
    """
    rounds: dict[int, dict[str, str]] = {}
    for sample in samples:
        rounds.setdefault(sample.step, {})[str(sample.path)] = sample.prompt
    paths: dict[tuple[SampleRow, int], str] = {}
    order: dict[SampleRow, None] = {}
    for step in sorted(rounds, reverse=True):  # the newest round decides the order
        seen: Counter[tuple[str, int | None]] = Counter()
        for path in sorted(rounds[step], key=lambda path: PurePath(path).name):
            key = rounds[step][path], _seed_of(path)
            row = SampleRow(*key, repeat=seen[key])
            seen[key] += 1
            order.setdefault(row)
            paths[row, step] = path
    return SampleTable(tuple(order), tuple(sorted(rounds)), paths)


def _seed_of(path: str) -> int | None:
    match = _FILE_NAME.match(PurePath(path).stem)
    return int(match["seed"]) if match else None
