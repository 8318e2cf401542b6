"""Which images a run has finished, so that one that overwrites files goes on where it was canceled or killed.

A run that only fills in what is missing needs no record: what it has written is not missing any more.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path

from modules.config.atomic_file import write_bytes
from modules.config.busy_files import retry_busy
from modules.config.errors import UserError
from modules.config.installation import window_state_folder
from modules.config.own_file import open_own


class DoneRecord:
    """A file with one path on each line, which begins anew when the work has become another.

    work: what tells it from any other: folder, model, instructions. Raises OSError if the folder can't be written to.
    """

    def __init__(self, folder: Path, work: Iterable[str]):
        folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.blake2b(json.dumps([*work]).encode("ascii"), digest_size=16).hexdigest()
        self._path = folder / f"{name}.jsonl"
        self.done = set(self._read())

    def left(self, paths: Iterable[str], restarts: bool) -> list[str]:
        """The paths that are still to be done. restarts: all of them, as the work begins anew."""
        if restarts:
            self.clear()
        return [path for path in paths if path not in self.done]

    def add(self, path: str) -> None:
        """Must be called after the image's file was written: at worst it is made twice."""
        with open_own(self._path, "a", encoding="ascii") as file:
            file.write(json.dumps(path) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def clear(self) -> None:
        """The work is finished, or is to begin anew."""
        retry_busy(partial(self._path.unlink, missing_ok=True))
        self.done = set()

    def _read(self) -> list[str]:
        try:
            lines = self._path.read_text(encoding="ascii").splitlines(keepends=True)
        except FileNotFoundError:
            return []
        whole = [line for line in lines if line.endswith("\n")]
        if len(whole) < len(lines):  # cut off by a kill
            write_bytes(self._path, "".join(whole).encode("ascii"))
        return [json.loads(line) for line in whole]


def open_record(kind: str, work: Iterable[str]) -> DoneRecord:
    """What an earlier run for the same `work` has done. kind: the name of the folder that keeps such records.

    Raises UserError if it can't be written to.
    """
    folder = window_state_folder() / kind
    try:
        return DoneRecord(folder, work)
    except OSError as error:
        raise UserError(f"{folder} can't be written ({error.strerror}): make it writable.") from error


def chosen_paths(only: Collection[str] | None) -> tuple[str, ...]:
    """Of chosen images, as a part of `work`; None: of all.

    A run for chosen images is other work: it would find its images done by that for all, and then forget that one.
    """
    return () if only is None else ("only", *sorted(only))
