"""Replace a file atomically: a reader never sees half of it. modules/session/atomic.py does the same for folders.

The new content is written under a temporary name beside the file, flushed to disk (fsync) and only then renamed.
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
    """Yield a temporary path beside `path`; the file written there replaces `path` when the block succeeds.

    For writers that take a path, such as safetensors. The temporary has a different extension than `path`, so tell the
    writer the format explicitly. If the block raises, `path` is left unchanged and the temporary is removed.
    """
    path = Path(path)
    temporary = temporary_beside(path)
    try:
        yield temporary
        set_default_permissions(temporary)
        sync_file(temporary)
        rename(temporary, path, LARGE_SECONDS if temporary.stat().st_size > _LARGE_BYTES else FILE_SECONDS)
    except BaseException:
        remove(temporary)
        raise
    sync_folder(path.parent)


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Atomically replace the file at `path` by `data`. Raises OSError, leaving the old file intact."""
    with new_file(path) as temporary:
        temporary.write_bytes(data)


def rename(source: str | os.PathLike, target: str | os.PathLike, seconds: float = FILE_SECONDS) -> None:
    """Rename a folder, or a file over an existing one, retrying for `seconds` while another process has it open.

    Raises OSError.
    """
    retry_busy(lambda: os.replace(source, target), seconds)


def temporary_beside(path: Path) -> Path:
    """A unique temporary name beside `path`, which contains the id of the writing process."""
    return path.with_name(f"{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")


def remove(path: Path) -> bool:
    """Remove a temporary file or folder if possible; returns whether it is gone."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError:  # still open on Windows, or never created: the next sweep removes what is left
        return False
    return True


def set_default_permissions(path: Path) -> None:
    """Give a file the default permissions of new files: those of safetensors are readable by their owner only."""
    if os.name == "posix":
        probe = temporary_beside(path)
        probe.touch()
        os.chmod(path, probe.stat().st_mode & 0o777)
        probe.unlink()


def sync_file(path: Path) -> None:
    """Flush the content of a file to disk."""
    flags = os.O_RDWR if os.name == "nt" else os.O_RDONLY  # Windows flushes only writable files
    descriptor = retry_busy(lambda: os.open(path, flags), LARGE_SECONDS)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk, where the system supports it."""
    if os.name == "nt":  # folders can't be opened there; NTFS journals its metadata
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some network and FUSE file systems can't sync a folder (EINVAL); the rename is already done by then.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
