"""The samples of a run as a table, with a row for each prompt and seed and a column for each step. No Tk."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modules.ui.models.RunState import SamplePicture

# The file names of sampling/SampleRound.py: 003_a red fox_seed42.png
_FILE_NAME = re.compile(r"^\d+_(?P<title>.*_seed(?P<seed>\d+))$", re.DOTALL)


@dataclass(frozen=True)
class SampleRow:
    """prompt: as written. seed: None if the file name has none. repeat: the number among identical ones."""

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
    """rows: in the order of the newest complete round, then those only in others. steps: ascending.

    paths: of the images, by (row, step); a cell may be empty.
    """

    rows: tuple[SampleRow, ...]
    steps: tuple[int, ...]
    paths: dict[tuple[SampleRow, int], str]

    def path(self, row: int, column: int) -> str | None:
        """The image in a cell; None if it is empty."""
        return self.paths.get((self.rows[row], self.steps[column]))


def arrange_samples(samples: Iterable[SamplePicture]) -> SampleTable:
    """The table of a run's samples, given in any order; an image that was made again counts once.

    Rows are matched by prompt and seed, not by the number in the file name, which changes when prompts are added or
    removed.
    """
    rounds: dict[int, dict[str, str]] = {}
    for sample in samples:
        rounds.setdefault(sample.step, {})[str(sample.path)] = sample.prompt
    paths: dict[tuple[SampleRow, int], str] = {}
    order: dict[SampleRow, None] = {}
    # The newest of the largest rounds determines the order: the last one may be incomplete.
    for step in sorted(rounds, key=lambda step: (len(rounds[step]), step), reverse=True):
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
