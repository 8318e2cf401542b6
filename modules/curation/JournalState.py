"""What a journal remembers between two processes: its steps, and the one that is being carried out."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from modules.session.atomic import write_json


@dataclass(frozen=True)
class Step:
    """A change that can be undone. number: of its record. num_bytes: of its record on disk."""

    number: int
    label: str
    num_files: int
    num_bytes: int


@dataclass(frozen=True)
class Pending:
    """A step that is being carried out. toward: which contents its files get. is_fresh: whether it was never complete.

    token: marks its temporary files.
    """

    step: Step
    toward: Literal["old", "new"]
    is_fresh: bool
    token: str


@dataclass(frozen=True)
class JournalState:
    """done: oldest first. undone: the next one to redo is the last. folder: the dataset's, for people."""

    folder: str
    done: tuple[Step, ...] = ()
    undone: tuple[Step, ...] = ()
    pending: Pending | None = None

    def write(self, path: Path) -> None:
        """Raises OSError."""
        write_json(path, asdict(self))

    @property
    def steps(self) -> tuple[Step, ...]:
        pending = (self.pending.step,) if self.pending else ()
        return (*self.done, *self.undone, *pending)


def read_state(path: Path, folder: str) -> JournalState:
    """The state at `path`, an empty one if there is none. Raises OSError, and ValueError if it is damaged."""
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        return JournalState(folder)
    try:
        pending = values["pending"] and Pending(**{**values["pending"], "step": Step(**values["pending"]["step"])})
        done, undone = (tuple(Step(**step) for step in values[name]) for name in ("done", "undone"))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is damaged") from error
    return JournalState(folder, done, undone, pending)
