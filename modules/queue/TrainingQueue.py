"""The folder of a queue: its entries, their order, and whether it is on. docs/queue.md lists the files.

Windows, scripts and runs read and change it at the same time. Each file is replaced atomically, or only added to, and
who changes anything holds `edit.lock` meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.busy_files import retry_busy
from modules.config.errors import UserError
from modules.config.files import save_config
from modules.queue.absolute_paths import with_absolute_paths
from modules.queue.entry_events import append_event
from modules.queue.gpus import GpuChoice, gpus_of
from modules.queue.ProcessLock import ProcessLock, is_taken
from modules.queue.QueueEntry import TO_DO, QueueEntry, read_entry, write_entry
from modules.session.atomic import is_temporary, new_folder, remove_folder, sweep_temporaries, write_json
from modules.session.free_folders import next_free_folder, next_name
from modules.session.RunFolder import RunFolder

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

EDIT_SECONDS = 10.0  # a change takes milliseconds
MAX_NAME = 120  # letters


@dataclass(frozen=True)
class QueueSettings:
    """is_on: whether entries are started. side_by_side: several at once, on different GPUs. order: ids of entries;
    those that it does not name come last, in the order in which they were added."""

    is_on: bool = False
    side_by_side: bool = False
    order: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EntryOptions:
    """What an entry is to do beside its settings, as in QueueEntry. gpus: None: what the settings choose."""

    name: str = ""
    gpus: GpuChoice | None = None
    not_before: float | None = None
    limit_hours: float | None = None
    resumes: bool = False
    held: bool = False


class TrainingQueue:
    """The queue in the folder at `path`, which is created when something is added.

    All methods may raise OSError from the disk, and UserError for what can't be done, with the reason.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path).absolute()

    @property
    def entries_dir(self) -> Path:
        return self.path / "entries"

    @property
    def runner_lock_path(self) -> Path:
        return self.path / "runner.lock"

    @property
    def runner_log_path(self) -> Path:
        return self.path / "runner.log"

    @property
    def has_runner(self) -> bool:
        """Whether a process is starting what is due."""
        return is_taken(self.runner_lock_path)

    def settings(self) -> QueueSettings:
        try:
            values = json.loads((self.path / "queue.json").read_bytes())
            order = tuple(filter(lambda one: isinstance(one, str), values["order"]))
            return QueueSettings(bool(values["is_on"]), bool(values["side_by_side"]), order)
        except FileNotFoundError:
            return QueueSettings()
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.path / 'queue.json'} can't be read ({error}): remove it.") from error

    def entries(self) -> list[QueueEntry]:
        """All entries in their order. One that can't be read is left out; `damaged` names it."""
        return self._read()[0]

    def damaged(self) -> list[str]:
        """Why entries can't be read, one sentence each."""
        return self._read()[1]

    def entry(self, id: str) -> QueueEntry:
        """The entry with this id, or with the only id or name that begins with it."""
        found = self.entries()
        exact = [entry for entry in found if id in (entry.id, entry.name)]
        alike = exact or [entry for entry in found if entry.id.startswith(id) or entry.name.startswith(id)]
        if len(alike) != 1:
            what = "no entry" if not alike else f"{len(alike)} entries"
            raise UserError(f"{id!r} names {what} of the queue: write its number, its name or its id.")
        return alike[0]

    def add(self, config: TrainConfig, options: EntryOptions | None = None) -> QueueEntry:
        """Add a run of these settings, which are frozen. A folder that is in use gives way to the next free one."""
        return self.add_all([(config, options or EntryOptions())])[0]

    def add_all(self, runs: Sequence[tuple[TrainConfig, EntryOptions]]) -> list[QueueEntry]:
        """Add several runs, in this order."""
        with self.editing():
            claimed = {entry.run_folder for entry in self.entries()}
            added = []
            for config, options in runs:
                added.append(self._add(config, options, claimed))
                claimed.add(added[-1].run_folder)
            return added

    def copy(self, id: str) -> QueueEntry:
        """Add the same run once more, in a folder of its own, right after the entry."""
        entry = self.entry(id)
        options = EntryOptions(
            name=_numbered(entry.name, {one.name for one in self.entries()}),
            gpus=entry.gpus,
            not_before=entry.not_before,
            limit_hours=entry.limit_hours,
        )
        made = self.add(entry.config(), options)
        return self._place(made.id, lambda ids: ids.index(entry.id) + 1)

    def edit(self, id: str, config: TrainConfig) -> QueueEntry:
        """Give an entry other settings. Its run keeps its folder once it was started."""
        with self.editing():
            entry = self.entry(id)
            if entry.state in ("running", "finished"):
                raise UserError(f"{entry.name} {_IS[entry.state]}: copy it to train it with other settings.")
            _refuse_machines(config)
            folder = self._folder_for(config, entry)
            others = {one.run_folder for one in self.entries() if one.id != entry.id}
            if folder in others:
                raise UserError.at("workspace_dir", f"{folder!r} is the folder of another entry: choose another one.")
            name = f"config-{secrets.token_hex(4)}.yaml"
            save_config(with_absolute_paths(replace(config, workspace_dir=folder)), entry.path / name)
            gpus = gpus_of(config) if gpus_of(config) != gpus_of(entry.config()) else entry.gpus
            changed = replace(entry, settings=name, run_folder=folder, gpus=gpus)
            write_entry(changed)  # from here on they are its settings
            with contextlib.suppress(OSError):
                retry_busy((entry.path / entry.settings).unlink)
            return changed

    def change(self, id: str, **values: object) -> QueueEntry:
        """Change name, gpus, not_before, limit_hours or held of an entry. A running one obeys held and the limit."""
        with self.editing():
            changed = replace(self.entry(id), **values)  # type: ignore[arg-type]
            _refuse_limit(changed.limit_hours)
            write_entry(changed)
            return changed

    def retry(self, id: str) -> QueueEntry:
        """Let an entry that has failed or was stopped go on, from its latest backup if there is one."""
        with self.editing():
            entry = self.entry(id)
            if entry.state not in ("failed", "stopped", "limit", "paused"):
                raise UserError(f"{entry.name} {_IS[entry.state]}: only what has failed or was stopped can be retried.")
            if entry.record.end:
                append_event(entry.events_path, "retried")
            write_entry(replace(entry, held=False))
            return read_entry(entry.path)

    def move(self, id: str, steps: int) -> QueueEntry:
        """Move an entry by so many places, forward if negative; as far as there are any."""
        entry = self.entry(id)
        return self._place(entry.id, lambda ids: max(0, ids.index(entry.id) + steps))

    def move_to(self, id: str, place: int) -> QueueEntry:
        """Move an entry to a place, counted from 0."""
        entry = self.entry(id)
        return self._place(entry.id, lambda ids: place)

    def remove(self, id: str) -> None:
        """Remove an entry that does not run. Its run folder stays."""
        with self.editing():
            entry = self.entry(id)
            claim = ProcessLock(entry.claim_path)
            if not claim.take():
                raise UserError(f"{entry.name} is running: pause it first.")
            claim.release()
            remove_folder(entry.path)

    def set_on(self, is_on: bool) -> None:
        """Turn the queue on or off. Runs that were started go on."""
        with self.editing():
            self._write(replace(self.settings(), is_on=is_on))

    def set_side_by_side(self, side_by_side: bool) -> None:
        """Start several runs at once, or one after the other."""
        with self.editing():
            self._write(replace(self.settings(), side_by_side=side_by_side))

    def turn_off_if_done(self, then: Callable[[], None]) -> bool:
        """Turn the queue off and call `then` if nothing is left to do, or call it if the queue is off already.

        Returns whether `then` was called. Nobody adds anything, or turns the queue on, in between.
        """
        with self.editing():
            settings = self.settings()
            if settings.is_on and any(entry.state in (*TO_DO, "running") for entry in self.entries()):
                return False
            if settings.is_on:
                self._write(replace(settings, is_on=False))
            then()
            return True

    @contextlib.contextmanager
    def editing(self) -> Iterator[None]:
        """Within the block, nobody else changes the queue. Raises UserError if somebody takes too long."""
        self.entries_dir.mkdir(parents=True, exist_ok=True)
        lock = ProcessLock(self.path / "edit.lock")
        if not lock.take(EDIT_SECONDS):
            raise UserError(f"The queue {self.path} is being changed by another process that does not end: end it.")
        try:
            yield
        finally:
            lock.release()

    def sweep(self) -> None:
        """Remove what killed processes have left half written."""
        with self.editing():
            sweep_temporaries(self.path)

    # --- files -------------------------------------------------------------------------------------------------------

    def _read(self) -> tuple[list[QueueEntry], list[str]]:
        try:
            paths = sorted(path for path in self.entries_dir.iterdir() if not is_temporary(path) and path.is_dir())
        except FileNotFoundError:
            return [], []
        order = {id: place for place, id in enumerate(self.settings().order)}
        entries, damaged = [], []
        for path in sorted(paths, key=lambda path: order.get(path.name, len(order))):
            try:
                entries.append(read_entry(path))
            except UserError as error:
                if path.exists():  # else it was just removed
                    damaged.append(str(error))
        return entries, damaged

    def _add(self, config: TrainConfig, options: EntryOptions, claimed: set[str]) -> QueueEntry:
        _refuse_machines(config)
        _refuse_limit(options.limit_hours)
        folder = str(RunFolder(config.workspace_dir).path)
        if not options.resumes:
            folder = _free(folder, claimed)
        elif folder in claimed:
            raise UserError.at("workspace_dir", f"{folder!r} is that of another entry of the queue: retry that one.")
        id = f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S-%f}-{secrets.token_hex(2)}"
        entry = QueueEntry(
            self.entries_dir / id,
            (options.name.strip() or Path(folder).name)[:MAX_NAME],
            gpus_of(config) if options.gpus is None else options.gpus,
            folder,
            not_before=options.not_before,
            limit_hours=options.limit_hours,
            held=options.held,
            resumes=options.resumes,
        )
        with new_folder(entry.path) as temporary:
            save_config(with_absolute_paths(replace(config, workspace_dir=folder)), temporary / entry.settings)
            write_entry(entry, temporary)
            append_event(temporary / entry.events_path.name, "added")
        return read_entry(entry.path)

    def _folder_for(self, config: TrainConfig, entry: QueueEntry) -> str:
        """The run folder of an entry that gets these settings."""
        if entry.record.was_started:
            return entry.run_folder
        folder = str(RunFolder(config.workspace_dir).path)
        return folder if folder == entry.run_folder else _free(folder, set())

    def _place(self, id: str, place_of: Callable[[list[str]], int]) -> QueueEntry:
        with self.editing():
            ids = [entry.id for entry in self.entries()]
            if id not in ids:
                raise UserError("The entry was removed from the queue meanwhile.")
            place = place_of(ids)
            ids.remove(id)
            ids.insert(place, id)
            self._write(replace(self.settings(), order=tuple(ids)))
        return self.entry(id)

    def _write(self, settings: QueueSettings) -> None:
        values = {"is_on": settings.is_on, "side_by_side": settings.side_by_side, "order": list(settings.order)}
        write_json(self.path / "queue.json", values)


_IS = {
    "running": "is running",
    "finished": "has finished",
    "waiting": "is waiting",
    "interrupted": "goes on when the queue does",
    "paused": "is paused",
    "failed": "has failed",
    "stopped": "was stopped",
    "limit": "was stopped at its limit",
}


def _free(folder: str, claimed: set[str]) -> str:
    """The folder, or the next one that no entry has `claimed` and that holds no run."""
    while folder in claimed or _holds_run(folder):
        folder = next_free_folder(folder) if folder not in claimed else next_name(folder)
    return folder


def _holds_run(folder: str) -> bool:
    path = RunFolder(folder)
    return path.events_dir.exists() or path.backup_dir.exists() or path.models_dir.exists()


def _numbered(name: str, taken: set[str]) -> str:
    """The name with the first number that is free: cat -> cat (2)."""
    stem = re.sub(r" \(\d+\)$", "", name)
    return next(one for number in range(2, 100_000) if (one := f"{stem} ({number})") not in taken)


def _refuse_machines(config: TrainConfig) -> None:
    if config.enable_multi_gpu and config.num_nodes > 1:
        raise UserError.at("num_nodes", f"{config.num_nodes}: the queue starts runs on this machine alone; set 1.")


def _refuse_limit(limit_hours: float | None) -> None:
    if limit_hours is not None and not 0 < limit_hours < 10_000:
        raise UserError(f"limit of {limit_hours:g} hours: it must be more than 0 and less than 10,000.")
