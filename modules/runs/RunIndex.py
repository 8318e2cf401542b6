"""The index of the runs below an output folder, kept in a folder beside them, so that all can be shown at once.

    .chorus-runs/index.json    a row for each run
    .chorus-runs/RUN.json      what the events of a run have said so far, from which reading goes on
    .chorus-runs/lock          held by the process that refreshes the index

All of it can be deleted at any time: it only saves time. Files are replaced atomically, so any number of windows may
read them; only one process refreshes them, and one that is killed loses at most what it had not written yet.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from modules.config.atomic_file import remove, rename, temporary_beside
from modules.config.errors import ConfigError, UserError
from modules.config.files import load_config
from modules.config.own_file import open_own
from modules.runs.marks import MARKS_NAME, read_marks
from modules.runs.RunEvents import RunEvents
from modules.runs.RunRow import RunRow
from modules.runs.settings_of_run import closest_preset, settings_of
from modules.session.atomic import is_temporary, sweep_temporaries
from modules.session.file_lock import HAS_NO_LOCKS, lock
from modules.session.following import event_files, is_running, read_end, read_status
from modules.session.RunFolder import RunFolder
from modules.session.user_cache import user_cache

FOLDER = ".chorus-runs"
VERSION = 1  # of the files: those of another one are made anew
SAVE_SECONDS = 1.0  # between two times that the index is written while runs are being read

Stamp = dict[str, list[int]]
"""File of a run -> its size in bytes and when it was changed, in nanoseconds."""


@dataclass(frozen=True)
class IndexedRun:
    """A row with the sizes and times of the files that it was made from."""

    row: RunRow
    stamp: Stamp = field(default_factory=dict)


class RunIndex:
    """The index of the runs in the subfolders of `folder`."""

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(os.path.abspath(folder))
        self._place: Path | None = None

    @property
    def path(self) -> Path:
        """Where the index is: beside the runs, or, where that can't be written, in the user's folder for caches."""
        if self._place is None:
            beside = self.folder / FOLDER
            is_ours = beside.is_dir() or os.access(self.folder, os.W_OK)
            self._place = beside if is_ours else user_cache() / "runs" / _file_name(str(self.folder))
        return self._place / "index.json"

    def load(self) -> list[RunRow]:
        """The rows of the index, as they were when it was last written; none if there is no index."""
        return [run.row for run in self._load().values()]

    def stamp(self) -> tuple[int, int]:
        """Size and time of the index's file, which change with it; (0, 0) if there is none."""
        try:
            stat = self.path.stat()
        except OSError:
            return 0, 0
        return stat.st_size, stat.st_mtime_ns

    def glance(self) -> list[RunRow]:
        """A row for each run there is, newest first: those of the index, and of others what can be told at once."""
        known = self._load()
        rows = []
        for name, when in self._names():
            rows.append(known[name].row if name in known else _glance_at(RunFolder(self.folder / name), when))
        return rows

    def refresh(
        self, is_wanted: Callable[[], bool] = lambda: True, told: Callable[[int, int], None] | None = None
    ) -> bool:
        """Bring the index up to date; returns whether it has changed. Does nothing if another process does it.

        is_wanted: asked between two runs; once it says no, what was read so far is written. told: called with how many
        of the runs that have changed are read, and how many there are. Raises OSError if the index can't be written.
        """
        with self._lock() as is_held:
            return is_held and self._refresh(is_wanted, told)

    def read(self, name: str) -> tuple[RunRow, RunEvents]:
        """The run in the subfolder `name` as it is now, read on from where the index has got to. Writes nothing.

        Raises OSError if its files can't be read.
        """
        folder = RunFolder(self.folder / name)
        events = self._read_events(folder)
        return _row(folder, events), events

    # --- refreshing --------------------------------------------------------------------------------------------------

    def _refresh(self, is_wanted: Callable[[], bool], told: Callable[[int, int], None] | None) -> bool:
        known = self._load()
        names = [name for name, _ in self._names()]
        found = {name: known[name] for name in names if name in known}
        changed = [name for name in names if self._has_changed(name, known.get(name))]
        has_news = len(found) != len(known)
        saved_at = time.monotonic()
        for number, name in enumerate(changed):
            if not is_wanted():
                break
            with contextlib.suppress(OSError, UserError):  # deleted meanwhile, or unreadable: as if it were not there
                found[name] = self._read(name)
                has_news |= found[name] != known.get(name)
            if told is not None:
                told(number + 1, len(changed))
            if has_news and time.monotonic() - saved_at >= SAVE_SECONDS:
                self._save(found)
                saved_at = time.monotonic()
        has_news |= self._look_for_running(found)
        if has_news or not self.path.exists():
            self._save(found)
            self._remove_others(names)
        return has_news

    def _has_changed(self, name: str, known: IndexedRun | None) -> bool:
        return known is None or not known.row.is_read or known.stamp != _stamp(RunFolder(self.folder / name))

    def _look_for_running(self, found: dict[str, IndexedRun]) -> bool:
        """Update which runs are active; only one without an exit record may be. Returns whether any has changed."""
        has_news = False
        for name, run in found.items():
            if run.row.status not in ("running", "ended"):
                continue
            status = "running" if is_running(RunFolder(self.folder / name)) else "ended"
            if status != run.row.status:
                found[name] = replace(run, row=replace(run.row, status=status))
                has_news = True
        return has_news

    def _read(self, name: str) -> IndexedRun:
        folder = RunFolder(self.folder / name)
        stamp = _stamp(folder)  # first: what is written from here on is noticed next time
        events = self._read_events(folder, writes=True)
        return IndexedRun(_row(folder, events), stamp)

    def _read_events(self, folder: RunFolder, writes: bool = False) -> RunEvents:
        path = self._entry_path(folder.path.name)
        events = _load_events(path)
        before = json.dumps(events.to_plain()) if writes else ""
        if not events.read(folder):
            events = RunEvents()
            events.read(folder)
        if writes and (text := json.dumps(events.to_plain())) != before:
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, f'{{"version": {VERSION}, "events": {text}}}\n')
        return events

    # --- files -------------------------------------------------------------------------------------------------------

    def _names(self) -> list[tuple[str, float]]:
        """The subfolders that hold runs, and when their event folders have changed last, newest first."""
        found = []
        try:
            names = os.listdir(self.folder)
        except OSError:
            return []
        for name in names:
            with contextlib.suppress(OSError, UserError):  # UserError: a name that no run folder may have
                folder = RunFolder(self.folder / name)
                if not name.startswith(".") and not is_temporary(name) and event_files(folder):
                    found.append((name, folder.events_dir.stat().st_mtime))
        return sorted(found, key=lambda one: (-one[1], one[0]))

    def _load(self) -> dict[str, IndexedRun]:
        try:
            plain = json.loads(self.path.read_bytes())
            if plain["version"] != VERSION:
                return {}
            rows = (IndexedRun(RunRow.from_plain(one["row"]), one["stamp"]) for one in plain["runs"])
            return {run.row.name: run for run in rows}
        except (OSError, ValueError, KeyError, TypeError, RecursionError):  # there is none, or it is damaged
            return {}

    def _save(self, found: dict[str, IndexedRun]) -> None:
        runs = [{"row": run.row.to_plain(), "stamp": run.stamp} for run in found.values()]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _replace(self.path, json.dumps({"version": VERSION, "runs": runs}, ensure_ascii=True) + "\n")

    def _entry_path(self, name: str) -> Path:
        return self.path.with_name(_file_name(name))

    def _remove_others(self, names: list[str]) -> None:
        """Remove the files of runs that are gone."""
        kept = {_file_name(name) for name in names}
        for path in self.path.parent.glob("run-*.json"):
            if path.name not in kept:
                remove(path)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[bool]:
        """Hold the lock of the index; yields whether it is held. On a disk without locks nobody is kept out."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open_own(self.path.with_name("lock"), "r+b", creates=True, buffering=0) as file:
            try:
                lock(file)
            except OSError as error:
                if error.errno not in HAS_NO_LOCKS:
                    yield False
                    return
            sweep_temporaries(self.path.parent, recursive=False)  # of a process that was killed
            yield True


def _row(folder: RunFolder, events: RunEvents) -> RunRow:
    """The run in a folder as it is now. Raises OSError."""
    record, status = read_end(folder) or {}, read_status(folder)
    settings = _settings(folder)
    preset, num_changes = ("", 0) if settings is None else closest_preset(settings)
    return RunRow(
        folder.path.name,
        status,
        str(record.get("text") or events.failure) if status == "failed" else "",
        True,
        events.first,
        max(events.last, record.get("time", 0.0)),
        events.seconds,
        events.step,
        events.total,
        events.epoch,
        events.curve.images,
        events.loss,
        events.validation[-1][1] if events.validation else None,
        events.num_samples,
        events.samples[-1].path if events.samples else "",
        tuple(events.saved),
        settings,
        preset,
        num_changes,
        read_marks(folder.path),
    )


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically, without waiting for the disk: 500 times that takes 10 s, and what a power failure
    damages here is only read again. Raises OSError."""
    temporary = temporary_beside(path)
    try:
        temporary.write_text(text, encoding="utf-8")
        rename(temporary, path)
    except BaseException:
        remove(temporary)
        raise


def _load_events(path: Path) -> RunEvents:
    """What was read of a run's events so far; nothing if there is no such file, or none that can be used."""
    try:
        plain: dict[str, Any] = json.loads(path.read_bytes())
        return RunEvents.from_plain(plain["events"]) if plain["version"] == VERSION else RunEvents()
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return RunEvents()


def _settings(folder: RunFolder) -> dict[str, Any] | None:
    try:
        return settings_of(load_config(folder.config_path))
    except ConfigError:  # whoever loads the settings is told why
        return None


def _glance_at(folder: RunFolder, when: float) -> RunRow:
    try:
        record, status = read_end(folder) or {}, read_status(folder)
    except OSError:
        record, status = {}, "ended"
    return RunRow(folder.path.name, status, time=max(when, record.get("time", 0.0)))


def _stamp(folder: RunFolder) -> Stamp:
    """Of the files that a row is made from."""
    files = [*event_files(folder), folder.config_path, folder.exit_path, folder.path / MARKS_NAME]
    found: Stamp = {}
    for path in files:
        with contextlib.suppress(OSError):
            stat = path.stat()
            found[path.name] = [stat.st_size, stat.st_mtime_ns]
    return found


def _file_name(name: str) -> str:
    """A file name for what belongs to `name`, which may be too long or have another meaning with an ending."""
    return f"run-{hashlib.sha256(os.fsencode(name)).hexdigest()[:24]}.json"
