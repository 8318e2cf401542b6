"""Open a file of a run folder without following a link in its place."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from typing import IO, Any

from modules.config.busy_files import retry_busy

IS_LINK = (errno.ELOOP, errno.EMLINK)  # with `no_follow`: of Linux and macOS, of FreeBSD


def open_own(path: str | os.PathLike, mode: str, *, creates: bool = False, **options: Any) -> IO[Any]:
    """As `open`, to write to a file that Chorus itself keeps in a run folder.

    Others may be able to write to the folder. A link that somebody has put in the place of the file is removed, so that
    nothing is written to its target; links in the place of folders are followed. creates: whether a missing file is
    created even in mode "r+b", which keeps the content of an existing one. Raises OSError.
    """
    opener = partial(no_follow, extra_flags=os.O_CREAT if creates else 0)
    try:
        return open(path, mode, opener=opener, **options)
    except OSError as error:
        if error.errno not in IS_LINK or not os.path.islink(path):
            raise
    retry_busy(Path(path).unlink)
    return open(path, mode, opener=opener, **options)


def no_follow(path: str, flags: int, extra_flags: int = 0) -> int:
    """An opener for `open` that raises OSError, with an errno in IS_LINK, for a link.

    Windows has no such flag: there, links are followed, but only administrators may make them.
    """
    return os.open(path, flags | extra_flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
