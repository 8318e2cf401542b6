"""Locks of open files, which the operating system releases when their process ends, however that happens."""

from __future__ import annotations

import errno
import os
import time
from typing import IO

HAS_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
IS_HELD = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}
_LOCKED_BYTE = 1 << 30  # Windows makes locked bytes unreadable, so one far behind what a file contains is locked


def lock_patiently(file: IO[bytes], seconds: float) -> None:
    """Take the lock, waiting up to `seconds` for its holder. Raises OSError."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return lock(file)
        except OSError as error:
            if error.errno not in IS_HELD or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def lock(file: IO[bytes], shared: bool = False) -> None:
    """Take the lock at once. Raises OSError, with an errno in IS_HELD or HAS_NO_LOCKS, if that is impossible."""
    if os.name == "nt":
        _lock_byte(file, "LK_NBLCK")
    else:
        import fcntl

        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def unlock(file: IO[bytes]) -> None:
    """Release the lock; closing does so, too, but not while a starting process has a copy of the file."""
    if os.name == "nt":
        _lock_byte(file, "LK_UNLCK")
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN)


def _lock_byte(file: IO[bytes], mode: str) -> None:
    import msvcrt

    file.seek(_LOCKED_BYTE)
    try:
        msvcrt.locking(file.fileno(), getattr(msvcrt, mode), 1)  # type: ignore[attr-defined] # Windows has it
    finally:
        file.seek(0)
