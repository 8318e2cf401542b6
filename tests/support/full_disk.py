"""A disk that is full in some folders, without a disk of its own."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from modules.config import atomic_file
from modules.session import atomic


@contextlib.contextmanager
def full_disk(*folders: Path) -> Iterator[None]:
    """Inside, no file and no folder can be completed below `folders`; what is there can be read and removed."""
    rename = atomic.rename

    def refuse(source: Path, target: Path, *seconds: float) -> None:
        if not atomic.is_temporary(target) and any(folder in target.parents for folder in folders):
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        rename(source, target, *seconds)

    atomic.rename = atomic_file.rename = refuse
    try:
        yield
    finally:
        atomic.rename = atomic_file.rename = rename
