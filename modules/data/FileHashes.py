"""Content hashes of files, stored by path, size and modification time so that each file is read only once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from modules.config.atomic_file import write_bytes
from modules.config.regular_file import open_regular
from modules.data.errors import ImageError
from modules.data.videos import files_of

NUM_READERS = 4


class FileHashes:
    """SHA-256 of files and of folders of frames.

    `save` writes this rank's hashes to `cache_dir/rank-N/file_hashes.json`; all ranks read them.
    A rank saves only the hashes of files that it has read itself: copying entries from other ranks could keep a stale
    one alive after the file has changed.
    on_file: called after each file.
    """

    def __init__(self, cache_dir: str | os.PathLike, rank: int, on_file: Callable[[], None] = lambda: None):
        self._root = Path(cache_dir)
        self._own_file = self._root / f"rank-{rank}" / "file_hashes.json"
        self._own = _read(self._own_file)
        self._others: list[dict[str, list]] = []
        self._changed = False
        self._on_file = on_file
        self.refresh()

    def refresh(self) -> None:
        """Reads the hashes that other ranks have saved since."""
        files = sorted(self._root.glob("rank-*/file_hashes.json"))
        self._others = [_read(file) for file in files if file != self._own_file]

    def of(self, paths: Iterable[str | os.PathLike]) -> list[str | None]:
        """The hash of each file, None if it can't be read."""
        hashes = []
        with ThreadPoolExecutor(NUM_READERS) as readers:
            for value in readers.map(self._one, map(os.fspath, paths)):
                hashes.append(value)
                self._on_file()
        return hashes

    def combined(self, paths: Iterable[Path], *more: str) -> str:
        """One hash over the names and contents of several files and the strings in `more`."""
        paths = list(paths)
        parts = [f"{path.parent.name}/{path.name}:{value}" for path, value in zip(paths, self.of(paths), strict=True)]
        return hashlib.sha256("\n".join([*parts, *more]).encode()).hexdigest()

    def save(self) -> None:
        if self._changed:
            with contextlib.suppress(OSError):  # on a full disk, the next run just hashes the files again
                self._own_file.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(self._own_file, json.dumps(self._own).encode())
            self._changed = False

    def _one(self, path: str) -> str | None:
        try:
            files = files_of(path)
            # of a folder of frames, too: its time changes when they are renamed, and with that their order
            stats = {name: os.stat(name) for name in dict.fromkeys((path, *files))}
            state = [sum(stats[file].st_size for file in files), max(stat.st_mtime_ns for stat in stats.values())]
            for known in (self._own, *self._others):
                if path in known and known[path][:2] == state:
                    return known[path][2]
            value = hash_of(files)
        except (OSError, ImageError):
            return None
        self._own[path] = [*state, value]
        self._changed = True
        return value


def hash_of(files: Sequence[str]) -> str:
    """The SHA-256 of a file, or of all frames of a video one after the other."""
    digest = hashlib.sha256()
    for path in files:
        with open_regular(path) as file:
            while chunk := file.read(2**20):
                digest.update(chunk)
    return digest.hexdigest()


def _read(file: Path) -> dict[str, list]:
    """The entries of a saved file; empty if it is damaged, and the files are then hashed again."""
    try:
        known = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {path: entry for path, entry in known.items() if isinstance(entry, list) and len(entry) == 3}
