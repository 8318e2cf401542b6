"""The record of one change: what each of its files was before and after."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path

from modules.config.atomic_file import new_file
from modules.curation.FileChanges import MISSING, fingerprint

_FOOTER_BYTES = 8  # the size of the index, which stands before it


@dataclass(frozen=True)
class FileRecord:
    """One file of a change. old, new: its fingerprints.

    The new content is the first `head` bytes of the old one, `num_middle` bytes of its own, and the last `tail` bytes
    of the old one: of a table of which one line is changed, only that line is kept twice.
    at: where in the record the old content begins, which the middle follows.
    """

    path: str
    old: str
    new: str
    at: int
    num_old: int
    head: int
    num_middle: int
    tail: int


class ChangeFile:
    """A record on disk, open for reading until `close`. Raises OSError, or ValueError if it is damaged."""

    def __init__(self, path: str | os.PathLike[str]):
        self._file = open(path, "rb")  # noqa: SIM115 # closed by __exit__
        try:
            self.files = tuple(FileRecord(*values) for values in self._read_index())
        except (TypeError, UnicodeDecodeError) as error:
            self._file.close()
            raise ValueError(f"{path} is damaged") from error
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> ChangeFile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()

    def old(self, record: FileRecord) -> bytes | None:
        return None if record.old == MISSING else self._read(record.at, record.num_old)

    def new(self, record: FileRecord) -> bytes | None:
        if record.new == MISSING:
            return None
        old, middle = self.old(record) or b"", self._read(record.at + record.num_old, record.num_middle)
        return old[: record.head] + middle + old[len(old) - record.tail :]

    def _read_index(self) -> list[list]:
        end = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, end - _FOOTER_BYTES))
        size = int.from_bytes(self._file.read(), "little")
        if size > end - _FOOTER_BYTES:
            raise ValueError(f"{self._file.name} is damaged")
        return json.loads(self._read(end - _FOOTER_BYTES - size, size))

    def _read(self, at: int, count: int) -> bytes:
        self._file.seek(at)
        return self._file.read(count)


def write_change(path: Path, files: Iterable[tuple[str, bytes | None, bytes | None]]) -> int:
    """Write the record of (path, old content, new content) of each file atomically; returns its size in bytes.

    files: taken one by one, so that they need not be in memory together. Raises OSError, and what `files` raises.
    """
    records = []
    with new_file(path) as temporary, open(temporary, "wb") as file:
        for name, before, after in files:
            old, new = before or b"", after or b""
            head = _shared(old, new)
            tail = _shared(old[head:][::-1], new[head:][::-1])
            middle = new[head : len(new) - tail]
            prints = fingerprint(before), fingerprint(after)
            records.append(astuple(FileRecord(name, *prints, file.tell(), len(old), head, len(middle), tail)))
            file.write(old)
            file.write(middle)
        index = json.dumps(records).encode("ascii")  # the escapes also keep names that are not UTF-8
        file.write(index)
        file.write(len(index).to_bytes(_FOOTER_BYTES, "little"))
        size = file.tell()
    return size


def _shared(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    if one[: len(other)] == other[: len(one)]:
        return min(len(one), len(other))
    low, high = 0, min(len(one), len(other))
    while low < high:  # comparing slices is much faster than comparing bytes one by one in Python
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low
