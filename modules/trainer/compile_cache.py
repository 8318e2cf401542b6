"""Where torch keeps what it has compiled for later starts: in the user's cache folder, within a size."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from modules.session.user_cache import user_cache

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # Triton's kernels are kept below it, unless TRITON_CACHE_DIR is set
MOST_BYTES = 4 << 30
# What a run has made or read within this time stays: one that is compiling may be about to read it again. Files are
# marked as read once a day only, on most disks.
RECENT_SECONDS = 48 * 3600.0
_TRASH = ".removed-"
_LOCKS = "locks"  # of processes that compile the same


def compile_cache_folder() -> Path:
    """In the folder for caches that the system has for each user."""
    return user_cache() / "compiled"


def keep_compiled(prunes: bool) -> None:
    """Has torch keep what it compiles in `compile_cache_folder`, unless the environment names another folder.

    prunes: remove what has not been used for longest, until MOST_BYTES are left; for one rank of each machine. Where
    the user has no such folder, torch uses one for temporary files.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    folder = compile_cache_folder()
    named = os.environ.get(VARIABLE)
    if named and named not in (os.path.abspath(default_cache_dir()), str(folder)):  # torch sets its default, too
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # torch unpickles what is in it
    except OSError:
        return
    os.environ[VARIABLE] = str(folder)
    if prunes:
        prune(folder, MOST_BYTES)


def prune(folder: Path, most_bytes: int, recent_seconds: float = RECENT_SECONDS) -> None:
    """Removes the least recently used entries of `folder` until `most_bytes` are left.

    Other processes may use the folder meanwhile: an entry disappears as a whole, and stays if it was used within
    `recent_seconds`.
    """
    entries = sorted(_entries(folder), key=lambda entry: entry.used)
    excess = sum(entry.num_bytes for entry in entries) - most_bytes
    for entry in entries:
        if excess <= 0 or entry.used > time.time() - recent_seconds:
            break
        trash = folder / (_TRASH + secrets.token_hex(8))
        with contextlib.suppress(OSError):  # another process was faster, or Windows keeps what is open
            entry.path.rename(trash)
            excess -= entry.num_bytes
    for trash in folder.glob(_TRASH + "*"):
        shutil.rmtree(trash, ignore_errors=True)


class _Entry(NamedTuple):
    """A folder with the files of one kernel or graph. used: when one of them was last written or read."""

    path: Path
    used: float
    num_bytes: int


def _entries(folder: Path) -> Iterator[_Entry]:
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != _LOCKS and not name.startswith(_TRASH)]
        if folders or not files:
            continue
        found = []
        for name in files:
            with contextlib.suppress(OSError):  # removed meanwhile
                found.append(os.stat(os.path.join(path, name)))
        if found:
            used = max(max(each.st_mtime, each.st_atime) for each in found)
            yield _Entry(Path(path), used, sum(each.st_size for each in found))
