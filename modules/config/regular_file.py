"""Opens files that someone else has put there, without ever waiting for one that is no regular file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

# what a path leads to if it is no regular file, for messages
_KINDS = (
    (stat.S_ISDIR, errno.EISDIR, "it is a folder"),
    (stat.S_ISFIFO, errno.EINVAL, "it is a named pipe, not a file"),
    (stat.S_ISSOCK, errno.EINVAL, "it is a socket, not a file"),
)
_OTHER = errno.EINVAL, "it is a device, not a file"


def open_regular(path: str | os.PathLike) -> BinaryIO:
    """Open a regular file for reading bytes.

    A plain `open` of a named pipe waits for a writer, maybe forever, and reading a device may never end.
    Raises OSError, with the reason in `strerror`, if the file can't be opened or is no regular file.
    """
    _check(path, os.stat(path))  # first, for opening a device alone can have effects
    return open(path, "rb", opener=_open_at_once)


def read_regular(path: str | os.PathLike, max_bytes: int = -1) -> bytes:
    """The content of a regular file, at most `max_bytes` of it. Raises OSError like `open_regular`."""
    with open_regular(path) as file:
        return file.read(max_bytes)


def check_regular(path: str | os.PathLike) -> None:
    """Raises OSError, as `open_regular` does, for libraries that open files themselves."""
    _check(path, os.stat(path))


def is_special(path: str | os.PathLike) -> bool:
    """Whether `path` leads to something that is neither a file nor a folder; False if nothing is there."""
    path = Path(path)
    return path.exists() and not path.is_file() and not path.is_dir()


def _open_at_once(path: str, flags: int) -> int:
    number = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    try:
        _check(path, os.fstat(number))  # it may have been replaced meanwhile
    except OSError:
        os.close(number)
        raise
    return number


def _check(path: str | os.PathLike, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    found = ((number, text) for matches, number, text in _KINDS if matches(status.st_mode))
    number, text = next(found, _OTHER)
    raise OSError(number, text, os.fspath(path))
