"""Commands to a run, sent as files in its run folder.

A command is an empty file named `<anything>.<command>.cmd`: it works from the window, from another machine that
shares the disk and from a shell (`touch commands/1.stop.cmd`).
"""

import contextlib
import os
import secrets
import time

from modules.config.atomic_file import write_bytes
from modules.config.busy_files import retry_busy
from modules.config.errors import UserError
from modules.session.RunFolder import RunFolder
from modules.session.TrainCallbacks import TrainCallbacks
from modules.session.TrainCommands import COMMANDS, TrainCommands

STARTED_VARIABLE = "CHORUS_STARTED"  # Unix time at which a run was started; older commands are ignored

_SUFFIX = ".cmd"
_POLL_SECONDS = 0.5  # listing a folder on a network disk costs milliseconds, a step may cost less


class FolderCommands(TrainCommands):
    """Requests that also come from other processes, as files in the run folder."""

    def __init__(self, run_folder: RunFolder, callbacks: TrainCallbacks, run_started: float | None = None):
        """Remove commands that were meant for an earlier run.

        callbacks: warned about commands that are unknown or can't be read.
        run_started: Unix time in seconds at which the run was started; commands sent since then, while it was
        loading, are kept. None: the run starts now, so all existing commands are old.
        """
        super().__init__()
        self._folder = run_folder.commands_dir
        self._callbacks = callbacks
        self._next_poll = 0.0
        self._taken: set[str] = set()  # names of commands already taken, in case their files can't be removed
        self._has_warned = False
        for entry in self._files():
            with contextlib.suppress(FileNotFoundError):  # its sender has just withdrawn it
                if run_started is None or os.path.getmtime(entry.path) < run_started:
                    self._consume(entry)

    def take(self) -> frozenset[str]:
        self._poll()
        return super().take()

    @property
    def stopping(self) -> bool:
        self._poll()
        return super().stopping

    def _poll(self) -> None:
        if time.monotonic() < self._next_poll:
            return
        self._next_poll = time.monotonic() + _POLL_SECONDS
        for entry in self._files():
            if not self._consume(entry):
                continue
            command = entry.name.removesuffix(_SUFFIX).rpartition(".")[2]
            if command in COMMANDS:
                self._request(command)
            else:
                known = ", ".join(COMMANDS)
                self._callbacks.on_warning(f"command {command!r} in {self._folder} is unknown: use one of {known}.")

    def _files(self) -> list[os.DirEntry]:
        try:
            with os.scandir(self._folder) as entries:
                return sorted((e for e in entries if e.name.endswith(_SUFFIX) and e.is_file()), key=lambda e: e.name)
        except OSError as error:  # an unreachable network disk must not end the training
            self._warn_once(f"commands can't be read from {self._folder} ({error.strerror}).")
            return []

    def _consume(self, entry: os.DirEntry) -> bool:
        """Remove the command's file; False if the command was taken before."""
        if entry.name in self._taken:
            return False
        self._taken.add(entry.name)
        try:
            retry_busy(lambda: os.unlink(entry.path))
        except FileNotFoundError:  # its sender has just withdrawn it
            return False
        except OSError as error:
            self._warn_once(f"command file {entry.path} can't be removed ({error.strerror}).")
        else:
            self._taken.remove(entry.name)
        return True

    def _warn_once(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._callbacks.on_warning(text)


def send_command(run_folder: RunFolder, name: str) -> None:
    """Send the command `name`, one of COMMANDS, to the run in `run_folder`, from any machine that has access to it.

    Raises ValueError for another name, and UserError if there is no run folder.
    """
    if name not in COMMANDS:
        raise ValueError(f"command {name!r}: it must be one of {', '.join(COMMANDS)}")
    if not run_folder.commands_dir.is_dir():
        path = str(run_folder.path)
        raise UserError(f"{path!r} is not the folder of a run: give the workspace_dir of one that was started.")
    # The time comes first, so that commands are sorted in the order in which they were sent.
    write_bytes(run_folder.commands_dir / f"{time.time_ns()}-{secrets.token_hex(4)}.{name}{_SUFFIX}", b"")
