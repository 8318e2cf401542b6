"""Where a journal lies on disk: its state, the records of its changes, and the lock that one process holds."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from modules.config.atomic_file import remove
from modules.config.errors import UserError
from modules.curation.ChangeFile import ChangeFile, write_change
from modules.curation.JournalState import JournalState, Step, read_state
from modules.session.atomic import remove_folder, sweep_temporaries
from modules.session.file_lock import HAS_NO_LOCKS, IS_HELD, lock_patiently, unlock
from modules.session.names import safe_file_name

KEPT_DAYS = 90  # a journal that was not used for so long is removed when another one is written
_STATE, _LOCK = "state.json", "lock"


class Busy(UserError):
    """Another process or thread holds the journal."""


class RecordLost(UserError):
    """The record of a step is gone or damaged."""


class JournalFolder:
    """The folder of the journal of one dataset, in `parent`, which holds those of all.

    dataset_folder: its real path, by which the journal is found again. path: its own.
    """

    def __init__(self, dataset_folder: str, parent: Path):
        self._dataset_folder = dataset_folder
        digest = hashlib.sha256(os.fsencode(dataset_folder)).hexdigest()[:16]
        self.path = parent / f"{safe_file_name(os.path.basename(dataset_folder), max_bytes=40)}-{digest}"

    @contextlib.contextmanager
    def locked(self, patience_seconds: float) -> Iterator[None]:
        """Hold the lock. Raises Busy if another one still does after `patience_seconds`; UserError."""
        with contextlib.ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(open(self.path / _LOCK, "ab"))
            except OSError as error:
                raise self._not_written(error) from error
            try:
                lock_patiently(file, patience_seconds)
            except OSError as error:
                if error.errno in IS_HELD:
                    raise Busy(
                        f"Another window or program is changing files of {self._dataset_folder}: wait until it has "
                        "finished."
                    ) from error
                if error.errno not in HAS_NO_LOCKS:
                    raise self._not_written(error) from error
            try:
                yield
            finally:
                with contextlib.suppress(OSError):  # a disk without locks
                    unlock(file)

    def peek(self) -> JournalState:
        """The state as it was last written, perhaps by another process that is at work."""
        try:
            return read_state(self.path / _STATE, self._dataset_folder)
        except (OSError, ValueError):  # which `state` tells when something is to be changed
            return JournalState(self._dataset_folder)

    def state(self) -> tuple[JournalState, str]:
        """The state, and a sentence for the person if it was damaged and is a new one. Raises UserError."""
        try:
            return read_state(self.path / _STATE, self._dataset_folder), ""
        except OSError as error:
            raise self._not_written(error) from error
        except ValueError:
            damaged = f"The undo history of {self._dataset_folder} is damaged, so a new one starts; no file is changed."
            return JournalState(self._dataset_folder), damaged

    def write_state(self, state: JournalState, after_files: bool = False) -> None:
        """after_files: whether files of the dataset have changed already. Raises UserError."""
        try:
            state.write(self.path / _STATE)
        except OSError as error:
            raise self._not_written(error, after_files) from error

    def record(self, step: Step, contents: Iterable[tuple[str, bytes | None, bytes | None]]) -> Step:
        """The step with the size of its record, once that is on disk. contents: as for `write_change`."""
        try:
            return replace(step, num_bytes=write_change(self._record_path(step), contents))
        except OSError as error:
            raise self._not_written(error) from error

    def record_of(self, step: Step) -> ChangeFile:
        """Raises RecordLost."""
        try:
            return ChangeFile(self._record_path(step))
        except (OSError, ValueError) as error:
            raise RecordLost(
                f"What {step.label!r} has changed can't be read from {self.path}: delete that folder to start a new "
                "undo history."
            ) from error

    def forget_unused(self) -> None:
        """Remove records that no step needs any more, and journals that were not used for KEPT_DAYS."""
        kept = {self._record_path(step) for step in self.state()[0].steps}
        for path in set(self.path.glob("*.change")) - kept:
            remove(path)
        sweep_temporaries(self.path, recursive=False)
        oldest = time.time() - KEPT_DAYS * 24 * 3600
        for path in self.path.parent.glob(f"*/{_STATE}"):
            with contextlib.suppress(OSError):  # another process removes it, too
                if path.stat().st_mtime < oldest:
                    remove_folder(path.parent)

    def _record_path(self, step: Step) -> Path:
        return self.path / f"{step.number:08}.change"

    def _not_written(self, error: OSError, after_files: bool = False) -> UserError:
        """Nothing is changed that could not be undone."""
        follows = "it is completed when the dataset is opened again" if after_files else "so no file was changed"
        reason = error.strerror or error
        return UserError(
            f"The undo history in {self.path} can't be written ({reason}), {follows}: free some space there, or make "
            "it writable."
        )
