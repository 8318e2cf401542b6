"""Follow a run through its folder: read new events, tell whether it is running, and find the runs there are."""

from __future__ import annotations

import heapq
import json
import os
import re
import time
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path, PurePath
from typing import Any

from modules.session.event_types import FinishedEvent, SavedEvent
from modules.session.events import EventRecord, is_time, read_events
from modules.session.ModelRecord import ModelRecord
from modules.session.RunFolder import RunFolder
from modules.session.RunLock import is_held
from modules.session.StepInfo import StepInfo

CHUNK_BYTES = 1 << 18
FRESH_SECONDS = 60.0  # without a lock, a run whose last event is younger than this counts as running
STALE_HEARTBEATS_SECONDS = 15.0
ENDS = ("finished", "stopped", "failed")  # as exit.json says how a run ended

_RANK_FILE = re.compile(r"rank-(\d{1,6})\.jsonl")


@dataclass(frozen=True)
class RunInfo:
    """A run that was found. time: of its last sign of life, in Unix seconds. status: as from `read_status`. step: the
    last one. total: the step at which it ends, 0 if unknown. loss: the smoothed loss of the last step, None if unknown.
    """

    folder: Path
    status: str
    time: float
    step: int
    total: int = 0
    loss: float | None = None


class RunFollower:
    """Reads the events added to `folder` since the last read."""

    def __init__(self, folder: RunFolder):
        self.folder = folder
        self._offsets: dict[Path, int] = {}

    def read(self) -> tuple[list[EventRecord], bool]:
        """New events of all files, sorted by time, and whether more can be read right away.

        Of the steps of a rank other than 0 only the last one read is included: the others repeat those of rank 0.
        A file that was replaced by a shorter one is read from its start. Raises OSError if it can't be read.
        """
        found: list[list[EventRecord]] = []
        has_more = False
        for path in event_files(self.folder):
            before = self._offsets.get(path, 0)
            is_main = path == self.folder.event_path(0)
            events, offset = read_events(path, before, CHUNK_BYTES, only_last_step=not is_main)
            self._offsets[path] = offset
            has_more |= abs(offset - before) > CHUNK_BYTES // 2
            found.append(events)
        # each file keeps its own order, even if a clock was set back
        return list(heapq.merge(*found, key=attrgetter("time"))), has_more

    def heartbeats(self) -> dict[int, dict[str, Any]]:
        """The supervisors' heartbeat records (docs/run_folder.md) by rank, with `silent_seconds` up to now."""
        found: dict[int, dict[str, Any]] = {}
        now = time.time()
        for path in self.folder.events_dir.glob("heartbeats-*.json"):
            try:
                record = json.loads(path.read_bytes())
                age = max(0.0, now - float(record["time"]))
                ranks = {int(rank): dict(entry) for rank, entry in record["ranks"].items()}
                silent = {rank: float(entry["silent_seconds"]) for rank, entry in ranks.items()}
            except (OSError, ValueError, KeyError, TypeError, AttributeError):  # just being replaced, or not our file
                continue
            if age <= STALE_HEARTBEATS_SECONDS:
                for rank, entry in ranks.items():
                    found[rank] = {**entry, "silent_seconds": silent[rank] + age}
        return found


def event_files(folder: RunFolder) -> list[Path]:
    """The existing event files: the supervisor's first, then by rank."""
    try:
        names = os.listdir(folder.events_dir)
    except (FileNotFoundError, NotADirectoryError):
        return []
    ranks = sorted(int(match[1]) for name in names if (match := _RANK_FILE.fullmatch(name)))
    supervisor = [folder.supervisor_event_path] if folder.supervisor_event_path.name in names else []
    return [*supervisor, *map(folder.event_path, ranks)]


def is_run_folder(path: str | os.PathLike) -> bool:
    """Whether the folder at `path` is a run folder, current or old: every run writes events first.

    Folders that merely have the names of a run folder's parts, or that can't be read, are not.
    """
    try:
        return bool(event_files(RunFolder(path)))
    except OSError:
        return False


def run_of_record(path: str | os.PathLike) -> Path | None:
    """The folder of the run that recorded its settings in the file at `path`; None if that is any other file."""
    for file in (Path(os.path.abspath(path)), Path(os.path.realpath(path))):  # a link to a record leads to it
        for folder in (file.parent, file.parent.parent):
            run = RunFolder(folder)
            if file in (run.config_path, run.resume_config_path) and is_run_folder(folder):
                return folder
    return None


def read_tail(path: str | os.PathLike, num_lines: int) -> list[str]:
    """The last lines of a text file, of which only the end is read; empty if it does not exist."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - CHUNK_BYTES // 4))
            return file.read().decode("utf-8", "replace").splitlines()[-num_lines:]
    except OSError:
        return []


def is_running(folder: RunFolder) -> bool:
    """Whether a run is active in the folder, by its lock or, on a disk without locks, by how recent its events are."""
    held = is_held(folder.lock_path)
    if held is not None:
        return held
    return folder.read_exit() is None and time.time() - last_sign(folder) < FRESH_SECONDS


def read_end(folder: RunFolder, since: float = 0.0) -> dict[str, Any] | None:
    """The record in exit.json of how the run ended, which has a "status" of ENDS and a "time".

    None if there is none, if it is damaged, or from before the Unix time `since`: whoever starts a run removes that of
    an earlier end, but maybe not yet. Raises OSError if it can't be read.
    """
    record = folder.read_exit()
    if record is None or record.get("status") not in ENDS:
        return None
    if not is_time(record.get("time")):
        record["time"] = 0.0
    return record if record["time"] >= since else None


def read_status(folder: RunFolder) -> str:
    """One of ENDS, "running", or "ended" for a run that does not run and has left no record. Raises OSError."""
    record = read_end(folder)
    return str(record["status"]) if record is not None else "running" if is_running(folder) else "ended"


def last_sign(folder: RunFolder) -> float:
    """When the run last wrote an event or exit.json, in Unix seconds; 0 if it never did."""
    return max(map(_modified, [folder.exit_path, folder.config_path, *event_files(folder)]), default=0.0)


def find_runs(workspace: str | os.PathLike) -> list[RunInfo]:
    """The runs in the subfolders of `workspace`: running ones first, then the newest first.

    Folders that can't be read are skipped.
    """
    try:
        entries = sorted(entry.path for entry in os.scandir(os.fspath(workspace)) if entry.is_dir())
    except OSError:
        return []
    found = [info for path in entries if (info := run_info(path)) is not None]
    return sorted(found, key=lambda info: (info.status != "running", -info.time))


def run_info(path: str | os.PathLike) -> RunInfo | None:
    """The run in the folder at `path`; None if it is not a run folder."""
    folder = RunFolder(path)
    try:
        if not event_files(folder):
            return None
        return RunInfo(folder.path, read_status(folder), last_sign(folder), *_last_step(folder.event_path(0)))
    except OSError:
        return None


def _last_step(path: Path) -> tuple[int, int, float | None]:
    """The last step, the step at which the run ends and the last smoothed loss, as in RunInfo.

    They are searched near the end of an event file: step lines are short and few others come between them.
    """
    try:
        size = path.stat().st_size
    except OSError:
        return 0, 0, None
    records, _ = read_events(path, max(0, size - (CHUNK_BYTES >> 2)))
    events = [record.event for record in reversed(records)]
    step = next((event.step for event in events if isinstance(event, StepInfo | FinishedEvent)), 0)
    last = next((event for event in events if isinstance(event, StepInfo)), None)
    return (step, 0, None) if last is None else (step, last.steps_total, last.smooth_loss)


def recorded_path(path: str | Path, folder: Path) -> Path:
    """A path that a run has recorded, adjusted if the run was moved or is mounted elsewhere since.

    folder: the part of the run folder that the path leads into, such as `samples_dir`, where it is now.
    """
    parts = PurePath(str(path).replace("\\", "/")).parts
    if folder.name not in parts:
        return Path(path)
    last = len(parts) - 1 - parts[::-1].index(folder.name)
    return folder.joinpath(*parts[last + 1 :])


def is_complete(folder: RunFolder, step: int) -> bool:
    """Whether, by its last events, the run finished at `step` and has since trained no other, with its model saved."""
    try:
        size = folder.event_path(0).stat().st_size
        records, _ = read_events(folder.event_path(0), max(0, size - (CHUNK_BYTES >> 2)))
    except OSError:
        return False
    events = [record.event for record in records]
    last = next((event for event in reversed(events) if isinstance(event, StepInfo | FinishedEvent)), None)
    if ModelRecord(folder.model_record_path, folder.models_dir).has_finished(step) is False:
        return False
    saved = [event for event in events if isinstance(event, SavedEvent) and event.step == step]
    has_model = any((folder.models_dir / Path(event.path).name).exists() for event in saved)
    return isinstance(last, FinishedEvent) and last.step == step and has_model


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
