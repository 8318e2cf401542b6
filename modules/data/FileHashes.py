"""Hashes of files' bytes, remembered by path, size and time so that a start does not read every file again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from modules.session.atomic import write_bytes

NUM_READERS = 4


class FileHashes:
    """SHA-256 of files; `save` keeps what was computed in `cache_dir/rank-N/file_hashes.json`, read by all ranks."""

    def __init__(self, cache_dir: str | os.PathLike, rank: int):
        self._own_file = Path(cache_dir) / f"rank-{rank}" / "file_hashes.json"
        self._known: dict[str, list] = {}
        self._changed = False
        for file in sorted(Path(cache_dir).glob("rank-*/file_hashes.json")):
            self._known.update(_read(file))

    def of(self, paths: Iterable[str | os.PathLike]) -> list[str | None]:
        """The hash of each file, None where it can't be read."""
        with ThreadPoolExecutor(NUM_READERS) as readers:
            return list(readers.map(self._one, map(os.fspath, paths)))

    def combined(self, paths: Iterable[Path], *more: str) -> str:
        """One hash of several files' names and bytes and of further texts."""
        paths = list(paths)
        parts = [f"{path.parent.name}/{path.name}:{value}" for path, value in zip(paths, self.of(paths), strict=True)]
        return hashlib.sha256("\n".join([*parts, *more]).encode()).hexdigest()

    def save(self) -> None:
        if self._changed:
            with contextlib.suppress(OSError):  # on a full disk the next start reads the files again, no more
                self._own_file.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(self._own_file, json.dumps(self._known).encode())
            self._changed = False

    def _one(self, path: str) -> str | None:
        try:
            stat = os.stat(path)
            known = self._known.get(path)
            if known and known[:2] == [stat.st_size, stat.st_mtime_ns]:
                return known[2]
            with open(path, "rb") as file:
                digest = hashlib.sha256()
                while chunk := file.read(2**20):
                    digest.update(chunk)
        except OSError:
            return None
        self._known[path] = [stat.st_size, stat.st_mtime_ns, digest.hexdigest()]
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
