"""The folder of one run: where its parts lie, and how the run ended. docs/run_folder.md describes it for readers."""

import contextlib
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from modules.config.busy_files import retry_busy
from modules.config.errors import UserError
from modules.config.files import save_config
from modules.config.TrainConfig import TrainConfig
from modules.session.atomic import is_temporary, sweep_temporaries, write_json
from modules.session.events import to_plain
from modules.session.writable import folder_path, look_for_obstacles, unusable

RESERVE_BYTES = 16 * 1024  # what exit.json takes with a long traceback
RESERVE_BYTES_FOR_EVENTS = 48 * 1024  # given up where there is something to note on a full disk
PARTS = ("events", "commands", "samples", "backup", "models", "tensorboard", "log")  # the folders in a run folder


class RunFolder:
    """The run folder at `path`, the setting workspace_dir. Making the object touches no disk; `create` does.

    Raises UserError for a path that is none, or that goes out from a working folder that is gone.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = folder_path("workspace_dir", path)  # absolute: it must outlive a change of directory

    @property
    def config_path(self) -> Path:
        return self.path / "config.yaml"

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
        """Of the machine whose first rank that is."""
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
        """Make the folders that are missing and sweep what a killed run left half written.

        Call it once, before the ranks start. Raises UserError, naming workspace_dir, if the folder can't be used.
        """
        folders = self._folders()
        try:
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):  # folders that exist may still be read-only
                pass
        except OSError as error:
            raise UserError(unusable("workspace_dir", self.path, error)) from error
        # Only the own folders: workspace_dir may be a home folder by mistake, and that is not ours to walk through.
        sweep_temporaries(self.path, recursive=False)
        for folder in folders:
            sweep_temporaries(folder)

    def check(self) -> None:
        """Raise the UserError of `create` where it can be told without writing anything."""
        try:
            for folder in self._folders():
                look_for_obstacles(folder)
        except OSError as error:
            raise UserError(unusable("workspace_dir", self.path, error)) from error

    def refuse_earlier_run(self) -> None:
        """Raise UserError if a run has left backups or models here: starting over would mix up their work."""
        for folder in (self.backup_dir, self.models_dir):
            if folder.is_dir() and any(_is_work(entry) for entry in folder.iterdir()):
                raise UserError(
                    f"workspace_dir {str(self.path)!r} holds a run already: resume it, or choose another folder."
                )

    def freeze_config(self, config: TrainConfig) -> None:
        """Keep `config` as a record of the settings of this run."""
        save_config(config, self.config_path)

    def free_bytes(self) -> int:
        """Free space of the disk that holds, or will hold, the folder."""
        existing = next(folder for folder in [self.path, *self.path.parents] if folder.exists())
        return shutil.disk_usage(existing).free

    def write_exit(self, status: str, **details: Any) -> None:
        """Record how the run ended: `status`, the time and `details` (plain data; NaN becomes null).

        What `note_end` has put down is added. On a full disk the record takes the place that `clear_exit` has kept.
        """
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
        """Has the record of the end say this too, whoever writes it and however full the disk is."""
        note = to_plain({"text": text, **details})
        try:
            self._write_reserve(note, RESERVE_BYTES)
        except FileNotFoundError:  # nobody keeps a place for a trainer that is used by itself
            write_json(self.reserve_path, note)

    def read_exit(self) -> dict[str, Any] | None:
        """The record of how the run ended, or None while it has not, or if the record is damaged."""
        try:
            record = json.loads(retry_busy(self.exit_path.read_bytes))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        return record if isinstance(record, dict) else None

    def clear_exit(self) -> None:
        """Forget how an earlier run here ended, and keep room on the disk for how this one will end.

        Whoever starts a run calls it, so that followers see it run.
        """
        retry_busy(lambda: self.exit_path.unlink(missing_ok=True))
        with contextlib.suppress(OSError):  # a disk that is full already; the start will say so
            # random, because some disks compress
            self.reserve_path.write_bytes(os.urandom(RESERVE_BYTES + RESERVE_BYTES_FOR_EVENTS))

    def _write_reserve(self, obj: Any, num_bytes: int) -> None:
        """In place, which takes no room on the disk. num_bytes: that are kept, by spaces, which JSON allows."""
        with open(self.reserve_path, "r+b") as file:
            file.write(json.dumps(obj, indent=2).encode().ljust(num_bytes - 1) + b"\n")
            file.truncate()
            file.flush()
            os.fsync(file.fileno())

    def _read_note(self) -> dict[str, Any]:
        try:
            note = json.loads(self.reserve_path.read_bytes())
        except (OSError, ValueError):  # most often the random bytes that keep the place
            return {}
        return {name: value for name, value in note.items() if value} if isinstance(note, dict) else {}

    def _folders(self) -> list[Path]:
        return [self.path / part for part in PARTS]


def _is_work(entry: Path) -> bool:
    """Whether a run has left it: file managers write files of their own into every folder that they show."""
    return not (is_temporary(entry) or entry.name.startswith(".") or entry.name.lower() in ("desktop.ini", "thumbs.db"))
