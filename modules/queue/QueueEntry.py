"""One entry of the queue: what it is to do, and what has become of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from modules.config.busy_files import retry_busy
from modules.config.errors import UserError
from modules.config.files import load_config
from modules.queue.entry_events import Record, read_events, record_of
from modules.queue.gpus import GpuChoice
from modules.queue.ProcessLock import is_taken
from modules.session.atomic import write_json

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

State = Literal["running", "waiting", "paused", "interrupted", "finished", "failed", "stopped", "limit"]
TO_DO: tuple[State, ...] = ("waiting", "interrupted")
"""The states of entries that a queue starts."""

MANIFEST = "entry.json"


@dataclass(frozen=True)
class QueueEntry:
    """An entry in its folder `path`, whose name is its id.

    name: for people. gpus: those it wants. run_folder: absolute. settings: the name of the file with its settings.
    not_before: Unix time before which it does not start; None: at once. limit_hours: after which it is stopped; None:
    never. held: does not start, and is stopped if it runs. resumes: its run is one that existed before.
    record, is_claimed: what has become of it, as `read_entry` found it; is_claimed: whether a process is training it.
    """

    path: Path
    name: str
    gpus: GpuChoice
    run_folder: str
    settings: str = "config.yaml"
    not_before: float | None = None
    limit_hours: float | None = None
    held: bool = False
    resumes: bool = False
    record: Record = field(default_factory=Record, compare=False)
    is_claimed: bool = field(default=False, compare=False)

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def state(self) -> State:
        if self.is_claimed:
            return "running"
        end = self.record.end
        if end == "signal":
            return "stopped"
        if end in ("finished", "failed", "stopped", "limit"):
            return end
        if self.held:
            return "paused"
        return "interrupted" if self.record.is_open else "waiting"

    @property
    def events_path(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def claim_path(self) -> Path:
        return self.path / "claim.lock"

    @property
    def log_path(self) -> Path:
        return self.path / "log.txt"

    def config(self) -> TrainConfig:
        """Its settings. Raises ConfigError if they can't be read."""
        return load_config(self.path / self.settings)

    def is_due(self, now: float) -> bool:
        """Whether a queue may start it at the Unix time `now`."""
        return self.state in TO_DO and (self.not_before is None or self.not_before <= now)


def write_entry(entry: QueueEntry, path: Path | None = None) -> None:
    """Write what an entry is to do, to its own folder or to `path`. Raises OSError."""
    names = ("name", "run_folder", "settings", "not_before", "limit_hours", "held", "resumes")
    gpus = list(entry.gpus) if isinstance(entry.gpus, tuple) else entry.gpus
    write_json((path or entry.path) / MANIFEST, {"gpus": gpus} | {name: getattr(entry, name) for name in names})


def read_entry(path: Path) -> QueueEntry:
    """The entry in a folder as it is now. Raises UserError if there is none, or it can't be read."""
    try:
        values = json.loads(retry_busy((path / MANIFEST).read_bytes))
        record, is_claimed = record_of(read_events(path / "events.jsonl")), is_taken(path / "claim.lock")
        if record.is_open and not is_claimed:  # it may have ended between the two looks
            record = record_of(read_events(path / "events.jsonl"))
        return QueueEntry(path, **_checked(values), record=record, is_claimed=is_claimed)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"There is no entry {path.name} in the queue any more.") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"The entry {path} of the queue can't be read ({error}): remove its folder.") from error


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    gpus = values["gpus"]
    known = {name for name in QueueEntry.__dataclass_fields__ if name not in ("path", "record", "is_claimed")}
    found = {name: value for name, value in values.items() if name in known}
    found["gpus"] = tuple(map(int, gpus)) if isinstance(gpus, list) else gpus if gpus == "all" else int(gpus)
    for name in ("name", "run_folder", "settings"):
        if not isinstance(found.get(name, ""), str):
            raise ValueError(f"{name} is no text")
    return found
