"""Write files and folders atomically: a reader never sees half of one.

Everything is written under a temporary name in the same folder, flushed to disk (fsync) and only then renamed. After a
crash or power failure either the old or the new file exists, and at worst a temporary that `sweep_temporaries` removes.
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
    set_default_permissions,
    sync_file,
    sync_folder,
    temporary_beside,
    write_bytes,
)
from modules.config.busy_files import LARGE_SECONDS

_TEMPORARY = re.compile(r"\.tmp-(\d{0,10})-[0-9a-f]{8}$")


@contextlib.contextmanager
def new_folder(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary folder beside `path`, which is renamed to `path` when the block succeeds.

    Raises FileExistsError if `path` exists before or after the block. If the block raises, the folder is removed.
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
    """Create a folder beside `path` under a temporary name and return it.

    For what a process needs while it runs. The process removes it; if it was killed, `sweep_temporaries` does.
    """
    temporary = temporary_beside(Path(path))
    temporary.mkdir()
    return temporary


def write_text(path: str | os.PathLike, text: str) -> None:
    """Atomically replace the file at `path` by `text` in UTF-8; line ends are written unchanged."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | os.PathLike, obj: Any) -> None:
    """Atomically replace the file at `path` by `obj` as indented JSON.

    Raises ValueError for NaN and infinity, which JSON does not have, and TypeError for anything but plain data.
    """
    # ASCII only: a path with undecodable bytes contains lone surrogates, which need an escape.
    write_text(path, json.dumps(obj, indent=2, allow_nan=False) + "\n")


def remove_folder(path: str | os.PathLike) -> None:
    """Remove a folder atomically: it is renamed to a temporary name before its content is deleted."""
    path = Path(path)
    temporary = temporary_beside(path)
    with contextlib.suppress(FileNotFoundError):
        rename(path, temporary)
        remove(temporary)


def is_temporary(path: str | os.PathLike) -> bool:
    """Whether `path` has the name of a file or folder still being written, which readers have to skip."""
    return _TEMPORARY.search(os.fspath(path)) is not None


def sweep_temporaries(folder: str | os.PathLike, recursive: bool = True) -> list[Path]:
    """Remove the temporaries in `folder` whose writer is dead, and return their paths.

    Call it before the ranks start: a writer on another machine that shares the disk looks like a dead one.
    recursive=False searches only `folder` itself. A folder that does not exist has no temporaries.
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
    """Whether a process with this id is running on this machine."""
    if pid == 0:  # os.kill takes 0 as its own process group
        return False
    if os.name == "nt":
        return _is_alive_on_windows(pid)
    try:
        os.kill(pid, 0)
    except PermissionError:  # it is running and belongs to another user
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
                set_default_permissions(Path(parent, name))
                sync_file(Path(parent, name))
        sync_folder(Path(parent))
