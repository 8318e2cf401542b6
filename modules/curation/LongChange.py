"""A change of the journal that grows while a program works for hours, such as a captioner: one step to undo.

Each file is written at once, and atomically. What it was before is noted first, so that a killed program leaves a
record from which the journal makes the step when the dataset is opened again.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from modules.config.busy_files import retry_busy
from modules.config.errors import UserError
from modules.curation.FileChanges import MISSING, ChangedOutside, FileChanges, fingerprint, read_present
from modules.curation.replace_files import new_token, replace_files, why_not_written
from modules.session.atomic import is_alive

SUFFIX = ".growing"
_NAME = re.compile(rf"(?P<pid>\d+)-[0-9a-f]+\{SUFFIX}")

Files = list[tuple[str, bytes | None, bytes | None]]


class LongChange:
    """Writes changes one after the other, until `close`. label: of the step that they become.

    folder: of the journal. Raises UserError if the folder can't be written to.
    """

    def __init__(self, folder: Path, label: str):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.path = folder / f"{new_token()}{SUFFIX}"
            self._file: IO[str] = open(self.path, "x", encoding="ascii")  # noqa: SIM115 - until `close`
        except OSError as error:
            raise _not_noted(folder, error) from error
        self._noted: set[str] = set()
        self._note({"label": label})

    def apply(self, changes: FileChanges) -> None:
        """Write all files of a change. Raises ChangedOutside if one is not as `changes.seen` says, and UserError."""
        new = {os.path.realpath(path): content for path, content in changes.new.items()}
        seen = {os.path.realpath(path): known for path, known in changes.seen.items()}
        for path in new:
            old = read_present(path)
            if fingerprint(old) != seen.get(path, MISSING):
                raise ChangedOutside([path])
            self._note(
                {"path": path, "new": fingerprint(new[path])}
                | ({} if path in self._noted else {"old": None if old is None else base64.b64encode(old).decode()})
            )
            self._noted.add(path)
        try:
            replace_files([*new], new.__getitem__, new_token())
        except OSError as error:
            raise UserError(why_not_written(error)) from error

    def close(self) -> None:
        """No more changes: the file at `path` is complete."""
        self._file.close()

    def _note(self, entry: dict[str, object]) -> None:
        try:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _not_noted(self.path.parent, error) from error


def left_over(folder: Path) -> list[Path]:
    """The notes of long changes whose program has ended without making a step of them."""
    found = []
    with contextlib.suppress(OSError):  # no journal yet
        for path in sorted(folder.iterdir()):
            match = _NAME.fullmatch(path.name)
            if match and not is_alive(int(match["pid"])):
                found.append(path)
    return found


def read_notes(path: Path) -> tuple[str, Files]:
    """(label, files with what they were before and are now) of a long change, without those that others have changed
    since or that were not written in the end. Raises OSError."""
    label = ""
    before: dict[str, bytes | None] = {}
    after: dict[str, set[str]] = {}
    for entry in _entries(path):
        label = entry.get("label", label)
        name = entry.get("path")
        if name is None:
            continue
        if "old" in entry:
            before[name] = None if entry["old"] is None else base64.b64decode(entry["old"])
        after.setdefault(name, set()).add(entry["new"])
    files: Files = []
    for name, old in before.items():
        present = read_present(name)
        if fingerprint(present) in after[name] and present != old:
            files.append((name, old, present))
    return label, files


def remove_notes(path: Path) -> None:
    with contextlib.suppress(OSError):  # open elsewhere on Windows: it is found again, with nothing left to undo twice
        retry_busy(path.unlink)


def _entries(path: Path) -> Iterator[dict]:
    with open(path, encoding="ascii") as file:
        for line in file:
            if line.endswith("\n"):  # else it was cut off, before its file was written
                yield json.loads(line)


def _not_noted(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"The undo history in {folder} can't be written ({error.strerror or error}), so no file was changed: free some "
        "space there, or make it writable."
    )
