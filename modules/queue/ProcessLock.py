"""A lock file that one process holds while it lives, with its id and the id of the boot in it."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from modules.config.own_file import no_follow, open_own
from modules.session.atomic import is_alive
from modules.session.file_lock import HAS_NO_LOCKS, IS_HELD, lock_patiently, unlock
from modules.session.RunLock import is_held

_BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")
_PATIENCE_SECONDS = 0.3  # who looks at a lock takes it for a moment


@dataclass(frozen=True)
class Holder:
    """The process that a lock file names, which may have ended. boot: the id of the boot in which it ran."""

    pid: int
    host: str
    boot: str

    @property
    def is_alive(self) -> bool:
        """Whether it may still run: not if this machine was started again since. Of another machine nobody knows."""
        return self.host != socket.gethostname() or (self.boot == boot_id() and is_alive(self.pid))


class ProcessLock:
    """An exclusive lock on the file at `path`, which the operating system releases when this process ends.

    Child processes don't inherit it. On a disk without locks, a process that the file names counts as its holder while
    it is alive and the machine was not started again.
    """

    def __init__(self, path: Path):
        self.path = path
        self._file: IO[bytes] | None = None

    def take(self, patience: float = _PATIENCE_SECONDS) -> bool:
        """Take the lock; False if another process holds it for longer than `patience` seconds. Raises OSError."""
        file = open_own(self.path, "r+b", creates=True, buffering=0)
        try:
            lock_patiently(file, patience)
        except OSError as error:
            is_taken = error.errno in IS_HELD or (error.errno in HAS_NO_LOCKS and is_process_alive(self.path))
            if is_taken or error.errno not in HAS_NO_LOCKS:
                file.close()
            if is_taken:
                return False
            if error.errno not in HAS_NO_LOCKS:
                raise
        file.truncate(0)
        file.write(f"{os.getpid()} {boot_id()} {socket.gethostname()}\n".encode())
        self._file = file
        return True

    def release(self) -> None:
        """Let others take it. Does nothing if it is not held."""
        if self._file is not None:
            file, self._file = self._file, None
            with contextlib.suppress(OSError):  # the disk has no locks, or is gone
                file.truncate(0)
                unlock(file)  # closing would not release it while a starting process has a copy of the file
            file.close()


def is_taken(path: Path) -> bool:
    """Whether a process holds the lock at `path`."""
    held = is_held(path)
    return is_process_alive(path) if held is None else held


def is_process_alive(path: Path) -> bool:
    """Whether the process that the file at `path` names may still run."""
    found = read_holder(path)
    return found is not None and found.is_alive


def read_holder(path: Path) -> Holder | None:
    """The process that took the lock at `path` last; None if it was released, or never taken."""
    try:
        with open(path, "rb", buffering=0, opener=no_follow) as file:
            pid, boot, host = file.read(512).decode("utf-8", "replace").split(maxsplit=2)
            return Holder(int(pid), host.strip(), boot)
    except (OSError, ValueError):
        return None


@cache
def boot_id() -> str:
    """An id that changes whenever this machine starts."""
    try:
        return _BOOT_FILE.read_text(encoding="ascii").strip()
    except (OSError, ValueError):  # not on Linux
        import psutil

        return str(round(psutil.boot_time() / 60))
