"""The folder of one run: the paths in it, and the record of how the run ended. See docs/run_folder.md."""

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from modules.config.busy_files import retry_busy
from modules.config.errors import UserError
from modules.config.files import save_config
from modules.config.own_file import open_own
from modules.config.TrainConfig import TrainConfig
from modules.session.atomic import is_temporary, sweep_temporaries, write_json
from modules.session.events import to_plain
from modules.session.RunLock import RunLock, is_held
from modules.session.writable import folder_path, look_for_obstacles, unusable

RESERVE_BYTES = 16 * 1024  # the size of exit.json with a long traceback
RESERVE_BYTES_FOR_EVENTS = 48 * 1024  # released when an event has to be written to a full disk
PARTS = ("events", "commands", "samples", "backup", "models", "tensorboard", "log")  # its subfolders


class RunFolder:
    """The run folder at `path`, the setting workspace_dir. Only `create` touches the disk, not the constructor.

    Raises UserError for an invalid path, or for a relative one if the working folder no longer exists.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = folder_path("workspace_dir", path)  # absolute, so that it survives a change of the working folder

    @property
    def config_path(self) -> Path:
        return self.path / "config.yaml"

    @property
    def resume_config_path(self) -> Path:
        """The settings with which the window last resumed the run."""
        return self.log_dir / "resume.yaml"

    @property
    def exit_path(self) -> Path:
        return self.path / "exit.json"

    @property
    def reserve_path(self) -> Path:
        return self.path / "exit.reserve"

    @property
    def lock_path(self) -> Path:
        return self.path / "run.lock"

    @property
    def events_dir(self) -> Path:
        return self.path / "events"

    @property
    def commands_dir(self) -> Path:
        return self.path / "commands"

    @property
    def samples_dir(self) -> Path:
        return self.path / "samples"

    @property
    def backup_dir(self) -> Path:
        return self.path / "backup"

    @property
    def models_dir(self) -> Path:
        return self.path / "models"

    @property
    def model_record_path(self) -> Path:
        return self.path / "models.json"

    @property
    def samples_left_path(self) -> Path:
        return self.path / "samples_left.json"

    @property
    def tensorboard_dir(self) -> Path:
        return self.path / "tensorboard"

    @property
    def log_dir(self) -> Path:
        return self.path / "log"

    def event_path(self, rank: int) -> Path:
        return self.events_dir / f"rank-{rank}.jsonl"

    def log_path(self, rank: int) -> Path:
        return self.log_dir / f"rank-{rank}.log"

    def stacks_path(self, rank: int) -> Path:
        return self.log_dir / f"rank-{rank}.stacks"

    def heartbeats_path(self, first_rank: int) -> Path:
        """The heartbeat file of the machine whose first rank is `first_rank`."""
        return self.events_dir / f"heartbeats-{first_rank}.json"

    @property
    def supervisor_event_path(self) -> Path:
        return self.events_dir / "supervisor.jsonl"

    @property
    def supervisor_log_path(self) -> Path:
        return self.log_dir / "supervisor.log"

    @property
    def window_log_path(self) -> Path:
        return self.log_dir / "window.log"

    def create(self) -> None:
        """Create missing folders and, unless a run holds the folder, remove files that a killed one left half written.

        Call it once, before the ranks start. Raises UserError, naming workspace_dir, if the folder can't be used.
        """
        folders = self._folders()
        try:
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):  # existing folders may be read-only
                pass
        except OSError as error:
            raise UserError(unusable("workspace_dir", self.path, error), "workspace_dir") from error
        if is_held(self.lock_path):  # by a run on another machine or in another container: its writers look dead here
            return
        # Only our own subfolders: workspace_dir may be a home folder by mistake, which must not be searched.
        sweep_temporaries(self.path, recursive=False)
        for folder in folders:
            sweep_temporaries(folder)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder for the run in the block, and remove the record of an earlier run's end.

        Call it after `create`. Raises UserError, naming workspace_dir, if another run holds the lock or the folder
        can't be written to.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(RunLock(self.lock_path))
                self.clear_exit()
            except OSError as error:
                raise UserError(unusable("workspace_dir", self.path, error), "workspace_dir") from error
            yield

    def check(self) -> None:
        """Raise the UserError that `create` would raise, as far as that can be found out without writing anything."""
        try:
            for folder in self._folders():
                look_for_obstacles(folder)
        except OSError as error:
            raise UserError(unusable("workspace_dir", self.path, error), "workspace_dir") from error

    def refuse_earlier_run(self) -> None:
        """Raise UserError if an earlier run has left backups or models here, which a new run would mix with its own."""
        for folder in (self.backup_dir, self.models_dir):
            if folder.is_dir() and any(_is_work(entry) for entry in folder.iterdir()):
                raise UserError.at(
                    "workspace_dir", f"{str(self.path)!r} holds a run already: resume it, or choose another folder."
                )

    def freeze_config(self, config: TrainConfig) -> None:
        """Write `config` to the folder as the record of this run's settings."""
        save_config(config, self.config_path, keeps_link=False)

    def free_bytes(self) -> int:
        """The free space on the disk that holds, or will hold, the folder."""
        existing = next(folder for folder in [self.path, *self.path.parents] if folder.exists())
        return shutil.disk_usage(existing).free

    def look_for_run(self) -> None:
        """Raise FileNotFoundError if the folder was deleted or its disk unmounted since `create`.

        Writers call it so that they make nothing anew at the mount point, where the disk would hide it later.
        """
        self.events_dir.stat()

    def write_exit(self, status: str, **details: Any) -> None:
        """Record how the run ended: `status`, the time and `details` (plain data; NaN becomes null).

        Details from `note_end` are added. On a full disk the record uses the space that `clear_exit` has reserved.
        Raises OSError.
        """
        self.look_for_run()
        record = {"status": status, "time": time.time(), **to_plain(details)}
        note = self._read_note()
        if texts := [part["text"] for part in (record, note) if part.get("text")]:
            note["text"] = " ".join(texts)
        record |= note
        try:
            write_json(self.exit_path, record)
        except OSError as error:
            try:
                self._write_reserve(record, 0)
                retry_busy(lambda: os.replace(self.reserve_path, self.exit_path))
            except OSError:
                raise error from None
        retry_busy(lambda: self.reserve_path.unlink(missing_ok=True))

    def note_end(self, text: str, **details: Any) -> None:
        """Store details that `write_exit` adds to the record, even from another process or on a full disk."""
        note = to_plain({"text": text, **details})
        try:
            self._write_reserve(note, RESERVE_BYTES)
        except FileNotFoundError:  # no space is reserved for a trainer that is used on its own
            self.look_for_run()
            write_json(self.reserve_path, note)

    def read_exit(self) -> dict[str, Any] | None:
        """The record of how the run ended; None if it has not ended or the record is damaged."""
        try:
            record = json.loads(retry_busy(self.exit_path.read_bytes))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        return record if isinstance(record, dict) else None

    def has_finished(self) -> bool:
        """Whether the run has trained to its last step, and has not been started again since."""
        try:
            return (self.read_exit() or {}).get("status") == "finished"
        except OSError:  # which whoever uses the folder reports
            return False

    def clear_exit(self) -> None:
        """Remove the record of an earlier run's end, and reserve disk space for the record of this run.

        Called by whoever starts a run, so that followers see it as running.
        """
        retry_busy(lambda: self.exit_path.unlink(missing_ok=True))
        # on a disk that is already full, the start says so
        with contextlib.suppress(OSError), open_own(self.reserve_path, "wb") as file:
            file.write(os.urandom(RESERVE_BYTES + RESERVE_BYTES_FOR_EVENTS))  # random, because some disks compress

    def _write_reserve(self, obj: Any, num_bytes: int) -> None:
        """Overwrite the reserve in place, which needs no disk space. num_bytes: the size to pad to, with spaces."""
        with open_own(self.reserve_path, "r+b") as file:
            file.write(json.dumps(obj, indent=2).encode().ljust(num_bytes - 1) + b"\n")
            file.truncate()
            file.flush()
            os.fsync(file.fileno())

    def _read_note(self) -> dict[str, Any]:
        try:
            note = json.loads(self.reserve_path.read_bytes())
        except (OSError, ValueError):  # ValueError: usually still the random bytes of the reserve
            return {}
        return {name: value for name, value in note.items() if value} if isinstance(note, dict) else {}

    def _folders(self) -> list[Path]:
        return [self.path / part for part in PARTS]


def _is_work(entry: Path) -> bool:
    """Whether a run wrote this file, rather than a file manager, which may add its own to any folder."""
    return not (is_temporary(entry) or entry.name.startswith(".") or entry.name.lower() in ("desktop.ini", "thumbs.db"))


def is_word(path: Path) -> bool:
    """Whether a saved file is that of a trained word: those of a model are in a folder of its name."""
    return path.parent.name != "models"
