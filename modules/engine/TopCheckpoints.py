"""The best checkpoints of a training by the figure that it monitors, as many as wanted."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from modules.config.errors import UserError
from modules.engine.Monitor import Mode
from modules.session.atomic import remove_folder
from modules.session.backups import ENGINE, STATE_NAME, find_backups
from modules.session.names import safe_file_name
from modules.trainer.BackupRanks import BackupRanks
from modules.trainer.BackupStore import BackupStore


@dataclass(frozen=True)
class Score:
    """Why a checkpoint was saved: the value of the monitored figure."""

    figure: str
    mode: Mode
    value: float

    def sort_key(self) -> float:
        """Smaller is better."""
        return self.value if self.mode == "min" else -self.value

    def is_comparable(self, other: Score) -> bool:
        return (self.figure, self.mode) == (other.figure, other.mode)

    def added_to(self, state: dict[str, Any]) -> dict[str, Any]:
        """What `TrainingEngine.state_dict` returned, with this score."""
        own = {**state["data"][ENGINE], "score": asdict(self)}
        return {**state, "data": {**state["data"], ENGINE: own}}


@dataclass(frozen=True)
class Scored:
    """A checkpoint with its score."""

    path: Path
    step: int
    score: Score

    def sort_key(self) -> tuple[float, int]:
        """Smaller is better; of equal ones, the earlier."""
        return self.score.sort_key(), self.step


def scored(folder: Path) -> list[Scored]:
    """The checkpoints in `folder` that have a score. Raises UserError if it can't be read."""
    try:
        return [
            Scored(info.path, info.step, score)
            for info in find_backups(folder)
            if (score := _score(info.path)) is not None
        ]
    except OSError as error:
        raise UserError(f"The checkpoints in {folder} can't be read ({error.strerror}): check its disk.") from error


def best_first(checkpoints: list[Scored]) -> list[Scored]:
    """Those that are comparable with the newest."""
    if not checkpoints:
        return []
    newest = max(checkpoints, key=lambda checkpoint: checkpoint.step)
    return sorted(filter(lambda other: other.score.is_comparable(newest.score), checkpoints), key=Scored.sort_key)


class TopCheckpoints:
    """Checkpoints in folder/NAME/step-N, where NAME says when each was saved and its score.

    Rank 0 writes them in the background. on_done(path, step) and on_warning(text) are called from the writing thread.
    ranks: if each of them writes its part; all then call `save`.
    """

    ranks: BackupRanks | None = None

    def __init__(self, folder: Path, on_done: Callable[[Path, int], None], on_warning: Callable[[str], None]):
        self.folder = folder
        self._on_done = on_done
        self._on_warning = on_warning
        self._writing: BackupStore | None = None

    def all(self) -> list[Scored]:
        folders = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        return [checkpoint for folder in folders for checkpoint in scored(folder)]

    def takes(self, score: Score, keep: int, until: int | None = None) -> bool:
        """Whether a checkpoint of this score would be among the best `keep`.

        until: the step after which others don't count, since training has gone back to it.
        """
        if math.isnan(score.value):
            return False
        self.close()  # the last one may not be there yet
        counted = [other for other in self.all() if until is None or other.step <= until]
        others = [other.score.sort_key() for other in counted if other.score.is_comparable(score)]
        return len(others) < keep or score.sort_key() < sorted(others)[keep - 1]

    def save(self, state: dict[str, Any], score: Score, at: str, keep: int) -> None:
        """Saves it, and then removes all but the best `keep`. at: such as "epoch-3"."""
        self.close()
        folder = self.folder / safe_file_name(f"{at}-{score.figure}-{score.value:.4g}")

        def done(path: Path, step: int) -> None:
            for other in best_first(self.all())[keep:]:
                remove_folder(other.path.parent)
            self._on_done(path, step)

        folder.mkdir(parents=True, exist_ok=True)
        self._writing = BackupStore(folder, 1, done, self._on_warning)
        self._writing.ranks = self.ranks
        self._writing.write(state["tensors"], state["data"])

    def close(self) -> None:
        """Waits until everything has been written."""
        if self._writing is not None:
            self._writing.close()


def _score(path: Path) -> Score | None:
    try:
        return Score(**json.loads((path / STATE_NAME).read_bytes())[ENGINE]["score"])
    except (OSError, ValueError, KeyError, TypeError):  # damaged, or saved for another reason
        return None
