"""Writing files and folders so that nobody ever sees half of one.

Everything is written under a temporary name in the same folder, put on the disk (fsync) and only then renamed. After a
crash or a power cut there is the old file or the new one, and at worst a temporary that `sweep_temporaries` removes.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from modules.config.busy_files import FILE_SECONDS, LARGE_SECONDS, retry_busy

_TEMPORARY = re.compile(r"\.tmp-(\d{0,10})-[0-9a-f]{8}$")
_LARGE_BYTES = 1 << 26


@contextlib.contextmanager
def new_file(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path beside `path`; what is written there replaces `path` when the block ends well.

    For writers that want a path of their own, such as safetensors. The temporary has another extension than `path`:
    tell the writer the format. If the block raises, the old `path` stays as it was and the temporary is removed.
    """
    path = Path(path)
    temporary = _temporary_beside(path)
    try:
        yield temporary
        _share(temporary)
        _sync_file(temporary)
        rename(temporary, path, LARGE_SECONDS if temporary.stat().st_size > _LARGE_BYTES else FILE_SECONDS)
    except BaseException:
        _remove(temporary)
        raise
    _sync_folder(path.parent)


@contextlib.contextmanager
def new_folder(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; it becomes `path`, complete, when the block ends well.

    Raises FileExistsError if something is at `path`, before or after the block. If the block raises, nothing is left.
    """
    path = Path(path)
    _refuse_existing(path)
    temporary = _temporary_beside(path)
    temporary.mkdir()
    try:
        yield temporary
        _sync_tree(temporary)
        _refuse_existing(path)
        rename(temporary, path, LARGE_SECONDS)
    except BaseException:
        _remove(temporary)
        raise
    _sync_folder(path.parent)


def make_temporary_folder(path: str | os.PathLike) -> Path:
    """Make a folder beside `path`, under a temporary name of it, and return it.

    It is for what a process needs while it runs, and its maker's to remove; `sweep_temporaries` does once that is dead.
    """
    temporary = _temporary_beside(Path(path))
    temporary.mkdir()
    return temporary


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Replace the file at `path` by `data`, whole or not at all. Raises OSError, with the old file intact."""
    with new_file(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | os.PathLike, text: str) -> None:
    """Replace the file at `path` by `text` in UTF-8, whole or not at all; line ends are written as they are."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | os.PathLike, obj: Any) -> None:
    """Replace the file at `path` by `obj` as indented JSON, whole or not at all.

    Raises ValueError for NaN and infinity, which JSON does not have, and TypeError for what is not plain data.
    """
    # ASCII only: a path with undecodable bytes holds lone surrogates, which UTF-8 can't carry but an escape can.
    write_text(path, json.dumps(obj, indent=2, allow_nan=False) + "\n")


def remove_folder(path: str | os.PathLike) -> None:
    """Remove a folder so that it is never seen half removed: first its name goes, then its content."""
    path = Path(path)
    temporary = _temporary_beside(path)
    with contextlib.suppress(FileNotFoundError):
        rename(path, temporary)
        _remove(temporary)


def rename(source: str | os.PathLike, target: str | os.PathLike, seconds: float = FILE_SECONDS) -> None:
    """Rename a file, over one that is there, or a folder, also if another process has it open for up to `seconds`.

    Raises OSError.
    """
    retry_busy(lambda: os.replace(source, target), seconds)


def is_temporary(path: str | os.PathLike) -> bool:
    """Whether `path` is named as a file or folder still being written, which readers of a folder must pass over."""
    return _TEMPORARY.search(os.fspath(path)) is not None


def sweep_temporaries(folder: str | os.PathLike, recursive: bool = True) -> list[Path]:
    """Remove the temporaries in `folder` whose writer is dead, and return what was removed.

    Call it before the ranks start: a writer on another machine that shares the disk can't be told from a dead one.
    recursive=False looks at `folder` itself only. A folder that does not exist has no temporaries.
    """
    removed = []
    for parent, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(parent, name)
            if _is_stale(name) and _remove(path):
                removed.append(path)
        folders[:] = [name for name in folders if recursive and not is_temporary(name)]
    return removed


def _temporary_beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")


def _is_stale(name: str) -> bool:
    match = _TEMPORARY.search(name)
    return match is not None and not (match[1] and is_alive(int(match[1])))


def is_alive(pid: int) -> bool:
    """Whether there is a process of this number on this machine."""
    if pid == 0:  # for os.kill this is the own process group, not a process
        return False
    if os.name == "nt":
        return _is_alive_on_windows(pid)
    try:
        os.kill(pid, 0)
    except PermissionError:  # it lives and belongs to someone else
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _is_alive_on_windows(pid: int) -> bool:
    # os.kill(pid, 0) would send Ctrl+C here, because CTRL_C_EVENT is 0.
    import ctypes
    from ctypes import wintypes

    query_limited_information, access_denied, still_active = 0x1000, 5, 259
    kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    kernel32.OpenProcess.restype = wintypes.HANDLE
    kernel32.OpenProcess.argtypes = [wintypes.DWORD, wintypes.BOOL, wintypes.DWORD]
    kernel32.GetExitCodeProcess.argtypes = [wintypes.HANDLE, wintypes.LPDWORD]
    kernel32.CloseHandle.argtypes = [wintypes.HANDLE]
    handle = kernel32.OpenProcess(query_limited_information, False, pid)
    if not handle:
        return ctypes.get_last_error() == access_denied
    try:
        code = wintypes.DWORD()
        return bool(kernel32.GetExitCodeProcess(handle, ctypes.byref(code))) and code.value == still_active
    finally:
        kernel32.CloseHandle(handle)


def _remove(path: Path) -> bool:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError:  # still open on Windows, or never made: the next sweep takes what is left
        return False
    return True


def _refuse_existing(path: Path) -> None:
    if os.path.lexists(path):
        raise FileExistsError(f"{path} exists already")


def _sync_tree(folder: Path) -> None:
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            if not os.path.islink(os.path.join(parent, name)):
                _share(Path(parent, name))
                _sync_file(Path(parent, name))
        _sync_folder(Path(parent))


def _share(path: Path) -> None:
    """Gives a file the permissions that new files have in its folder: safetensors lets only its owner read."""
    if os.name == "posix":
        probe = _temporary_beside(path)
        probe.touch()
        os.chmod(path, probe.stat().st_mode & 0o777)
        probe.unlink()


def _sync_file(path: Path) -> None:
    flags = os.O_RDWR if os.name == "nt" else os.O_RDONLY  # Windows flushes writable files only
    descriptor = retry_busy(lambda: os.open(path, flags), LARGE_SECONDS)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # folders can't be opened there; NTFS keeps its own journal of names
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some network and FUSE file systems refuse to sync a folder (EINVAL); the rename itself has been done by then.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
