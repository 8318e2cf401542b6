"""Writing files and folders so that nobody ever sees half of one.

Everything is written under a temporary name in the same folder, put on the disk (fsync) and only then renamed. After a
crash or a power cut there is the old file or the new one, and at worst a temporary that `sweep_temporaries` removes.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from modules.config.atomic_file import (
    remove,
    rename,
    share,
    sync_file,
    sync_folder,
    temporary_beside,
    write_bytes,
)
from modules.config.busy_files import LARGE_SECONDS

_TEMPORARY = re.compile(r"\.tmp-(\d{0,10})-[0-9a-f]{8}$")


@contextlib.contextmanager
def new_folder(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; it becomes `path`, complete, when the block ends well.

    Raises FileExistsError if something is at `path`, before or after the block. If the block raises, nothing is left.
    """
    path = Path(path)
    _refuse_existing(path)
    temporary = temporary_beside(path)
    temporary.mkdir()
    try:
        yield temporary
        _sync_tree(temporary)
        _refuse_existing(path)
        rename(temporary, path, LARGE_SECONDS)
    except BaseException:
        remove(temporary)
        raise
    sync_folder(path.parent)


def make_temporary_folder(path: str | os.PathLike) -> Path:
    """Make a folder beside `path`, under a temporary name of it, and return it.

    It is for what a process needs while it runs, and its maker's to remove; `sweep_temporaries` does once that is dead.
    """
    temporary = temporary_beside(Path(path))
    temporary.mkdir()
    return temporary


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
    temporary = temporary_beside(path)
    with contextlib.suppress(FileNotFoundError):
        rename(path, temporary)
        remove(temporary)


def is_temporary(path: str | os.PathLike) -> bool:
    """Whether `path` is named as a file or folder still being written, which readers of a folder must pass over."""
    return _TEMPORARY.search(os.fspath(path)) is not None


def sweep_temporaries(folder: str | os.PathLike, recursive: bool = True) -> list[Path]:
    """Remove the temporaries in `folder` whose writer is dead, and return what was removed.

    Call it before the ranks start: a writer on another machine that shares the disk can't be told from a dead one.
    recursive=False looks at `folder` itself only. A folder that does not exist has no temporaries.
    """
    removed = []
    for parent, folders, files in os.walk(os.fspath(folder)):
        for name in [*folders, *files]:
            path = Path(parent, name)
            if _is_stale(name) and remove(path):
                removed.append(path)
        folders[:] = [name for name in folders if recursive and not is_temporary(name)]
    return removed


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
    kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined] # Windows has it
    kernel32.OpenProcess.restype = wintypes.HANDLE
    kernel32.OpenProcess.argtypes = [wintypes.DWORD, wintypes.BOOL, wintypes.DWORD]
    kernel32.GetExitCodeProcess.argtypes = [wintypes.HANDLE, wintypes.LPDWORD]
    kernel32.CloseHandle.argtypes = [wintypes.HANDLE]
    handle = kernel32.OpenProcess(query_limited_information, False, pid)
    if not handle:
        return ctypes.get_last_error() == access_denied  # type: ignore[attr-defined] # Windows has it
    try:
        code = wintypes.DWORD()
        return bool(kernel32.GetExitCodeProcess(handle, ctypes.byref(code))) and code.value == still_active
    finally:
        kernel32.CloseHandle(handle)


def _refuse_existing(path: Path) -> None:
    if os.path.lexists(path):
        raise FileExistsError(f"{path} exists already")


def _sync_tree(folder: Path) -> None:
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            if not os.path.islink(os.path.join(parent, name)):
                share(Path(parent, name))
                sync_file(Path(parent, name))
        sync_folder(Path(parent))
