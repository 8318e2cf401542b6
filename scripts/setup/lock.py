"""One set-up at a time in a folder."""

import contextlib
import errno
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from scripts.setup.SetupError import SetupError

HAS_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


@contextlib.contextmanager
def exclusive(path: Path, say: "Callable[[str], None]") -> "Iterator[None]":
    """Hold the lock file `path`, after waiting for a process that holds it. A process that dies lets go of it.

    A disk that has no locks is used without.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        lock = open(str(path), "ab")  # noqa: SIM115 - closed below; what happens in the with block isn't this error
    except OSError as error:
        raise SetupError(
            f"{path} can't be written ({error.strerror}); put Chorus into a folder of your own and start again."
        ) from error
    with lock:
        if not _try_lock(lock):
            say("Another set-up of this folder is running; waiting for it to end.")
            while not _try_lock(lock):
                time.sleep(0.1)
        yield


def _try_lock(file: BinaryIO) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # held by another process, in the words of fcntl and of msvcrt
        return False
    except OSError as error:
        if error.errno not in HAS_NO_LOCKS:
            raise
    return True
