"""The lock that allows one run at a time in a run folder."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import IO

from modules.config.errors import UserError
from modules.config.own_file import IS_LINK, no_follow, open_own
from modules.session import file_lock
from modules.session.file_lock import HAS_NO_LOCKS, IS_HELD, lock_patiently, unlock

_PATIENCE_SECONDS = 0.3  # `is_held` takes the lock for a moment


class RunLock:
    """Holds the file at `path` while the block runs, so that a second run in its folder is refused.

    The operating system releases the lock when its process ends, however that happens; the file itself stays and
    means nothing. On a disk without locks none is taken. Child processes don't inherit the lock.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = os.fspath(path)

    def __enter__(self) -> RunLock:
        """Raises UserError, naming workspace_dir, if another run holds the lock."""
        self._file: IO[bytes] = open_own(self.path, "r+b", creates=True, buffering=0)
        try:
            lock_patiently(self._file, _PATIENCE_SECONDS)
        except OSError as error:
            if error.errno in IS_HELD:
                holder = _read_holder(self._file)
                self._file.close()
                raise UserError(self._in_use(*holder), "workspace_dir") from error
            if error.errno not in HAS_NO_LOCKS:
                self._file.close()
                raise
        self._file.truncate(0)
        self._file.write(f"{os.getpid()} {socket.gethostname()}\n".encode())
        return self

    def __exit__(self, *exc_info: object) -> None:
        with contextlib.suppress(OSError):  # the disk is gone, or has no locks
            self._file.truncate(0)
            unlock(self._file)  # closing would release it too, but not while a starting process has a copy of the file
        self._file.close()

    def _in_use(self, pid: int | None, host: str) -> str:
        process = f" (process {pid}{'' if host == socket.gethostname() else f' on {host}'})" if pid else ""
        return (
            f"workspace_dir {os.path.dirname(self.path)!r} is in use by another run{process}: "
            "stop it, or choose another folder."
        )


def is_held(path: str | os.PathLike) -> bool | None:
    """Whether a run holds the lock at `path`; None if unknown, as on a disk without locks."""
    try:
        with open(path, "rb", buffering=0, opener=no_follow) as file:
            file_lock.lock(file, shared=True)
            unlock(file)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in IS_LINK:  # no lock of ours, and whoever starts a run replaces it
            return False
        return True if error.errno in IS_HELD else None
    return False


def holder_here(path: str | os.PathLike) -> int | None:
    """The id of the process on this machine that holds the lock at `path`; None if none does, or on another machine."""
    if not is_held(path):
        return None
    try:
        with open(path, "rb", buffering=0, opener=no_follow) as file:
            pid, host = _read_holder(file)
    except OSError:
        return None
    return pid if host == socket.gethostname() else None


def _read_holder(file: IO[bytes]) -> tuple[int | None, str]:
    pid, _, host = file.read(512).decode("utf-8", "replace").strip().partition(" ")
    return (int(pid), host) if pid.isascii() and pid.isdigit() and int(pid) > 0 else (None, "")
