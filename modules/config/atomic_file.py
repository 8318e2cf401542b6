"""Replacing a file so that nobody ever sees half of it; modules/session/atomic.py does the same for folders.

What is new is written under a temporary name beside the old, put on the disk (fsync) and only then renamed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from modules.config.busy_files import FILE_SECONDS, LARGE_SECONDS, retry_busy

_LARGE_BYTES = 1 << 26


@contextlib.contextmanager
def new_file(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path beside `path`; what is written there replaces `path` when the block ends well.

    For writers that want a path of their own, such as safetensors. The temporary has another extension than `path`:
    tell the writer the format. If the block raises, the old `path` stays as it was and the temporary is removed.
    """
    path = Path(path)
    temporary = temporary_beside(path)
    try:
        yield temporary
        share(temporary)
        sync_file(temporary)
        rename(temporary, path, LARGE_SECONDS if temporary.stat().st_size > _LARGE_BYTES else FILE_SECONDS)
    except BaseException:
        remove(temporary)
        raise
    sync_folder(path.parent)


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Replace the file at `path` by `data`, whole or not at all. Raises OSError, with the old file intact."""
    with new_file(path) as temporary:
        temporary.write_bytes(data)


def rename(source: str | os.PathLike, target: str | os.PathLike, seconds: float = FILE_SECONDS) -> None:
    """Rename a file, over one that is there, or a folder, also if another process has it open for up to `seconds`.

    Raises OSError.
    """
    retry_busy(lambda: os.replace(source, target), seconds)


def temporary_beside(path: Path) -> Path:
    """A name beside `path` that no other writer takes; it says which process writes there."""
    return path.with_name(f"{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")


def remove(path: Path) -> bool:
    """Removes a temporary file or folder, if it can; whether it is gone."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError:  # still open on Windows, or never made: the next sweep takes what is left
        return False
    return True


def share(path: Path) -> None:
    """Gives a file the permissions that new files have in its folder: safetensors lets only its owner read."""
    if os.name == "posix":
        probe = temporary_beside(path)
        probe.touch()
        os.chmod(path, probe.stat().st_mode & 0o777)
        probe.unlink()


def sync_file(path: Path) -> None:
    """Puts the content of a file on the disk."""
    flags = os.O_RDWR if os.name == "nt" else os.O_RDONLY  # Windows flushes writable files only
    descriptor = retry_busy(lambda: os.open(path, flags), LARGE_SECONDS)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Puts the names in a folder on the disk, where the system can."""
    if os.name == "nt":  # folders can't be opened there; NTFS keeps its own journal of names
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some network and FUSE file systems refuse to sync a folder (EINVAL); the rename itself has been done by then.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
