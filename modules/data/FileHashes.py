"""Hashes of files' bytes, remembered by path, size and time so that a start does not read every file again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from modules.config.atomic_file import write_bytes

NUM_READERS = 4


class FileHashes:
    """SHA-256 of files; `save` keeps what was computed in `cache_dir/rank-N/file_hashes.json`, read by all ranks.

    A rank's file holds what that rank has read itself: an entry of another rank that a changed file has made stale
    must not be carried on beside the new one.
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
        """Reads what all other ranks have saved by now."""
        files = sorted(self._root.glob("rank-*/file_hashes.json"))
        self._others = [_read(file) for file in files if file != self._own_file]

    def of(self, paths: Iterable[str | os.PathLike]) -> list[str | None]:
        """The hash of each file, None where it can't be read."""
        hashes = []
        with ThreadPoolExecutor(NUM_READERS) as readers:
            for value in readers.map(self._one, map(os.fspath, paths)):
                hashes.append(value)
                self._on_file()
        return hashes

    def combined(self, paths: Iterable[Path], *more: str) -> str:
        """One hash of several files' names and bytes and of further texts."""
        paths = list(paths)
        parts = [f"{path.parent.name}/{path.name}:{value}" for path, value in zip(paths, self.of(paths), strict=True)]
        return hashlib.sha256("\n".join([*parts, *more]).encode()).hexdigest()

    def save(self) -> None:
        if self._changed:
            with contextlib.suppress(OSError):  # on a full disk the next start reads the files again, no more
                self._own_file.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(self._own_file, json.dumps(self._own).encode())
            self._changed = False

    def _one(self, path: str) -> str | None:
        try:
            stat = os.stat(path)
            state = [stat.st_size, stat.st_mtime_ns]
            for known in (self._own, *self._others):
                if path in known and known[path][:2] == state:
                    return known[path][2]
            with open(path, "rb") as file:
                digest = hashlib.sha256()
                while chunk := file.read(2**20):
                    digest.update(chunk)
        except OSError:
            return None
        self._own[path] = [*state, digest.hexdigest()]
        self._changed = True
        return digest.hexdigest()


def _read(file: Path) -> dict[str, list]:
    """What a file of `save` holds; a damaged one only costs reading the pictures again."""
    try:
        known = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {path: entry for path, entry in known.items() if isinstance(entry, list) and len(entry) == 3}
