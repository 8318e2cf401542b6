"""Content hashes of files, stored by path and state (size, times, inode) so that each file is read only once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

from modules.config.atomic_file import write_bytes
from modules.config.regular_file import open_regular
from modules.data.errors import ImageError
from modules.data.readings import READING_VERSION, reading_of
from modules.data.videos import files_of

NUM_READERS = 4


@dataclass
class _Known:
    """What is known of a file, or of a folder of frames.

    size: in bytes. modified: in ns. value: its hash. identity: of its inodes and times of change, which no program can
    set; "" as saved by versions that did not store it. readings: as from `reading_of`, of an image or as a mask.
    """

    size: int
    modified: int
    value: str
    identity: str = ""
    readings: dict[str, str] = field(default_factory=dict)

    def is_of(self, state: _Known) -> bool:
        return (self.size, self.modified, self.identity) == (state.size, state.modified, state.identity)


class FileHashes:
    """SHA-256 of files and of folders of frames, followed by what is read of them in another way than it once was.

    `save` writes this rank's hashes to `cache_dir/rank-N/file_hashes.json`; all ranks read them.
    A rank saves only the hashes of files that it has read itself: copying entries from other ranks could keep a stale
    one alive after the file has changed.
    on_file: called after each file.
    """

    def __init__(self, cache_dir: str | os.PathLike, rank: int, on_file: Callable[[], None] = lambda: None):
        self._root = Path(cache_dir)
        self._own_file = self._root / f"rank-{rank}" / "file_hashes.json"
        self._own = _read(self._own_file)
        self._others: list[dict[str, _Known]] = []
        self._changed = False
        self._on_file = on_file
        self.refresh()

    def refresh(self) -> None:
        """Reads the hashes that other ranks have saved since."""
        files = sorted(self._root.glob("rank-*/file_hashes.json"))
        self._others = [_read(file) for file in files if file != self._own_file]

    def of(
        self, paths: Iterable[str | os.PathLike], masks: Collection[str | os.PathLike] = frozenset()
    ) -> list[str | None]:
        """The hash of each file, None if it can't be read. masks: which of `paths` are read as masks."""
        hashes = []
        with ThreadPoolExecutor(NUM_READERS) as readers:
            for value in readers.map(lambda path: self._one(os.fspath(path), path in masks), paths):
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
                write_bytes(
                    self._own_file, json.dumps({path: astuple(known) for path, known in self._own.items()}).encode()
                )
            self._changed = False

    def _one(self, path: str, as_mask: bool) -> str | None:
        try:
            files = files_of(path)
            state = _state_of(path, files)
            found = self._found(path, state)
            known = found or replace(state, value=hash_of(files))
            role = f"{'mask' if as_mask else 'image'} {READING_VERSION}"
            if role not in known.readings:
                known = replace(known, readings={**known.readings, role: reading_of(path, files, as_mask)})
        except (OSError, ImageError):
            return None
        if known is not found:
            self._own[path] = known
            self._changed = True
        reading = known.readings[role]
        return f"{known.value} {reading}" if reading else known.value

    def _found(self, path: str, state: _Known) -> _Known | None:
        """What is known of a file in this state.

        An entry without identity counts as long as there is none with: that one is newer.
        """
        entries = [known[path] for known in (self._own, *self._others) if path in known]
        for entry in entries:
            if entry.is_of(state):
                return entry
        if not any(entry.identity for entry in entries):
            for entry in entries:
                if replace(entry, identity=state.identity).is_of(state):
                    return replace(entry, identity=state.identity)
        return None


def _state_of(path: str, files: Sequence[str]) -> _Known:
    # of a folder of frames, too: its time changes when they are renamed, and with that their order
    stats = {name: os.stat(name) for name in dict.fromkeys((path, *files))}
    size, modified = sum(stats[file].st_size for file in files), max(stat.st_mtime_ns for stat in stats.values())
    # The inode is 0 where a file system has none. On Windows, the time is that of creation, and a copy has its own.
    identity = [(stat.st_ino, stat.st_ctime_ns) for stat in stats.values()]
    return _Known(size, modified, "", hashlib.sha256(repr(identity).encode()).hexdigest()[:16])


def hash_of(files: Sequence[str]) -> str:
    """The SHA-256 of a file, or of all frames of a video one after the other."""
    digest = hashlib.sha256()
    for path in files:
        with open_regular(path) as file:
            while chunk := file.read(2**20):
                digest.update(chunk)
    return digest.hexdigest()


def _read(file: Path) -> dict[str, _Known]:
    """The entries of a saved file; empty if it is damaged, and the files are then hashed again."""
    try:
        known = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {path: _Known(*entry) for path, entry in known.items() if isinstance(entry, list) and _is_entry(entry)}


def _is_entry(entry: list) -> bool:
    # of three fields in files of versions that stored no identity
    return len(entry) == 3 or (len(entry) == 5 and isinstance(entry[4], dict))
