"""Replaces any number of files, each of which is old or new at any moment.

All new contents are written under temporary names and flushed to disk before the first file is touched, so that a full
disk or a folder without permission changes nothing. Only then are they renamed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

from modules.config.atomic_file import remove, rename, sync_file, sync_folder
from modules.config.busy_files import retry_busy
from modules.session.names import illegal_on_windows

# On a busy disk, creating and renaming each wait for milliseconds, as fsync does, and what waits at the same time goes
# together: 5,000 captions beside two programs that write took 46 s one by one, 24 s by 8 threads, 35 s by 16.
NUM_THREADS = 8
_ON_WINDOWS = os.name == "nt"
_REMEDIES = {
    errno.ENOSPC: "free some space on its disk",
    errno.EDQUOT: "free some space, for your quota is used up",
    errno.EROFS: "copy the dataset to a disk that can be written to",
    errno.ENOENT: "bring its folder back, or reload the dataset",
    errno.ENOTDIR: "bring its folder back, or reload the dataset",
    errno.ENAMETOOLONG: "shorten the name of its image",
    errno.EINVAL: "rename its image",
}


class ChangedMeanwhile(Exception):
    """A file changed while the new contents were being written. path: its path."""

    def __init__(self, path: str):
        super().__init__(path)
        self.path = path


def new_token() -> str:
    """Marks the temporary files of one change; `is_temporary` knows their names."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def replace_files(
    paths: Sequence[str],
    content: Callable[[str], bytes | None],
    token: str,
    is_unchanged: Callable[[str], bool] = lambda path: True,
) -> None:
    """Give each of the files its new content, or remove it where that is None. Their folders must exist.

    content, is_unchanged: called in threads, `content` not twice at the same time. token: from `new_token`.
    is_unchanged: asked right before a file is replaced.
    Raises OSError, with the file's path as `filename`, and ChangedMeanwhile. Files that were replaced before then stay
    so; before the first is, everything that a disk or a permission can refuse was done.
    """
    # not made of the files' names, which may be as long as the disk allows
    temporaries = {path: Path(path).with_name(f".{number}.tmp-{token}") for number, path in enumerate(paths)}
    made: set[str] = set()
    reading = threading.Lock()  # `content` may read from one open file

    def make(path: str) -> None:
        with _named(path):
            _check_writable(path)
            with reading:
                data = content(path)
            if data is not None:
                made.add(path)
                temporaries[path].write_bytes(data)
                with contextlib.suppress(FileNotFoundError):
                    shutil.copymode(path, temporaries[path])

    def sync(path: str) -> None:
        with _named(path):
            sync_file(temporaries[path])

    def replace(path: str) -> None:
        if not is_unchanged(path):
            raise ChangedMeanwhile(path)
        with _named(path):
            if path in made:
                rename(temporaries[path], path)
            else:
                retry_busy(partial(Path(path).unlink, missing_ok=True))

    try:
        _for_all(paths, make)
        _for_all(sorted(made), sync)
        _for_all(paths, replace)
    except BaseException:
        for path in made:
            remove(temporaries[path])
        raise
    _sync_folders(paths)


def remove_leftovers(paths: Iterable[str], token: str) -> None:
    """Remove the temporary files that a killed process has left beside `paths`."""
    for folder in dict.fromkeys(map(os.path.dirname, paths)):
        with contextlib.suppress(OSError):  # the folder is gone, and they with it
            for name in os.listdir(folder):
                if name.endswith(f".tmp-{token}"):
                    remove(Path(folder, name))


def why_not_written(error: OSError) -> str:
    """One sentence on a failure of `replace_files` after which everything is as it was."""
    remedy = _REMEDIES.get(error.errno or 0, "make the file and its folder writable")
    return f"{error.filename} can't be written ({error.strerror or error}), and no file was changed: {remedy}."


def _for_all(paths: Sequence[str], do: Callable[[str], None]) -> None:
    """Call `do` with each path, in threads. When it raises, no further call begins, and none is running."""
    threads = ThreadPoolExecutor(NUM_THREADS)
    try:
        futures = [threads.submit(do, path) for path in paths]
        wait(futures, return_when=FIRST_EXCEPTION)
    finally:
        threads.shutdown(cancel_futures=True)
    for future in futures:
        if not future.cancelled():
            future.result()


def _check_writable(path: str) -> None:
    """A rename would replace a read-only file, too."""
    if _ON_WINDOWS and (name := illegal_on_windows(path)):
        raise OSError(errno.EINVAL, f"Windows has no files named {name!r}", path)
    if os.path.exists(path) and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "it is read-only", path)


def _sync_folders(paths: Iterable[str]) -> None:
    for folder in dict.fromkeys(map(os.path.dirname, paths)):
        with _named(folder):
            sync_folder(Path(folder))


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """An error of writing has no path, and that of a rename has the temporary one."""
    try:
        yield
    except OSError as error:
        error.filename = path
        raise
