"""The table of runs for the window, kept up to date by a process beside it. No Tk."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from modules.config.errors import UserError
from modules.config.installation import ROOT
from modules.machine.ChildProcess import ChildProcess
from modules.runs.RunIndex import RunIndex
from modules.runs.RunRow import RunRow
from modules.session.following import recorded_path
from modules.session.RunFolder import RunFolder


@dataclass(frozen=True)
class FoundRuns:
    """rows: of each output folder. pictures: run folder -> the image that stands for it, as far as it is there."""

    rows: tuple[tuple[Path, tuple[RunRow, ...]], ...] = ()
    pictures: tuple[tuple[Path, str], ...] = ()


def output_folders(workspace_dir: str, runs: Iterable[str]) -> tuple[Path, ...]:
    """The folders to look for runs in: the one with the run folder of the settings, and those of remembered runs."""
    found: dict[Path, None] = {}
    for folder in (workspace_dir, *runs):
        try:
            found.setdefault(RunFolder(folder).path.parent)
        except UserError:  # an invalid folder, which its field reports
            continue
    return tuple(found)


class RunsModel:
    """Reads the indexes of `folders`. `look` reads what is new, in a thread; `start` keeps the indexes up to date.

    The process that does so ends with `close`, and with the window, however that ends.
    """

    def __init__(self, folders: Iterable[Path]):
        self.folders = tuple(folder for folder in folders if folder.is_dir())
        self._indexes = {folder: RunIndex(folder) for folder in self.folders}
        self._seen: dict[Path, tuple[int, int]] = {}
        self._child = ChildProcess(takes_lines=True)
        self.error = ""  # why the indexes can't be kept up to date

    def start(self) -> None:
        """Start the process, whose end a thread waits for."""
        if not self.folders:
            return
        script = str(ROOT / "scripts" / "runs.py")
        self._child.start([sys.executable, script, "refresh", "--watch", *map(str, self.folders)])
        threading.Thread(target=self._wait, daemon=True).start()

    def close(self) -> None:
        self._child.cancel()

    def look(self, is_first: bool = False) -> FoundRuns | None:
        """The runs as the indexes have them; None if these have not changed since. Takes some 50 ms for 500 runs.

        is_first: also runs that no index has yet, with what their folders say at a glance.
        """
        stamps = {folder: index.stamp() for folder, index in self._indexes.items()}
        if stamps == self._seen and not is_first:
            return None
        self._seen = stamps
        rows = []
        for folder, index in self._indexes.items():
            found = index.load()
            is_complete = bool(found) and not is_first
            rows.append((folder, tuple(found if is_complete else index.glance())))
        pictures = [
            (folder / row.name, path) for folder, found in rows for row in found if (path := picture_of(folder, row))
        ]
        return FoundRuns(tuple(rows), tuple(pictures))

    def _wait(self) -> None:
        done = self._child.wait(heard=lambda line: None)
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        if done.returncode and not self._child.is_cancelled:
            self.error = lines[-1] if lines else f"runs.py ended with exit code {done.returncode}."


def picture_of(folder: Path, row: RunRow) -> str:
    """The file of the image that stands for a run: its result, else its last sample; "" if there is none."""
    run = folder / row.name
    paths = [run / row.marks.result.image] if row.marks.result is not None else []
    if row.sample:
        paths.append(recorded_path(row.sample, run / "samples"))
    return next((str(path) for path in paths if path.is_file()), "")
