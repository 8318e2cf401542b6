"""The runs that the page shows, and the samples that it may send."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from modules.config.errors import UserError
from modules.runs.RunEvents import RunEvents
from modules.runs.RunIndex import RunIndex
from modules.runs.RunTable import TableRun, with_those_before
from modules.session.following import event_files, recorded_path
from modules.session.RunFolder import RunFolder

REFRESH_SECONDS = 5.0  # between two looks at all folders, while somebody looks at the page
FRESH_SECONDS = 2.0  # as long as a run that was read is not read again: its images are asked for at once
MAX_KEPT = 8
IDLE_SECONDS = 120.0  # after the last request, until nothing is read any more
CONTENT_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".mp4": "video/mp4",
}


class ShownRun(NamedTuple):
    """place: number of its output folder. samples: paths below its folder for samples -> (step, prompt), in order."""

    place: int
    run: TableRun
    events: RunEvents
    samples: dict[str, tuple[int, str]]


class PageRuns:
    """folders: those that the folders of runs are in. All methods may be called by several threads.

    Reading all runs of a large folder takes long: a thread of its own does it, and pages show what is known so far.
    """

    def __init__(self, folders: Sequence[Path]):
        self.folders = [Path(os.path.realpath(folder)) for folder in folders]
        self._indexes = [RunIndex(folder) for folder in self.folders]
        self._locks = [threading.Lock() for _ in self.folders]
        self._kept: dict[tuple[int, str], tuple[float, ShownRun]] = {}
        self._wanted_at = 0.0
        self._is_wanted = threading.Event()
        self._is_over = threading.Event()
        self._refresher = threading.Thread(target=self._refresh, name="index of runs", daemon=True)
        self._refresher.start()

    def close(self) -> None:
        self._is_over.set()
        self._is_wanted.set()

    def all(self) -> list[tuple[int, TableRun]]:
        """All runs with the numbers of their folders: running ones first, then the newest first."""
        self._wanted_at = time.monotonic()
        self._is_wanted.set()
        found = [
            (place, run)
            for place, index in enumerate(self._indexes)
            for run in with_those_before(index.folder, index.glance())
        ]
        return sorted(found, key=lambda one: (one[1].row.status != "running", -(one[1].row.started or one[1].row.time)))

    def run(self, place: int, name: str) -> ShownRun | None:
        """The run as it is now; None if there is none that may be shown."""
        folder = self._folder(place, name)
        if folder is None:
            return None
        with self._locks[place]:  # one reading at a time: a page that is asked for often must not use up the machine
            kept = self._kept.get((place, name))
            if kept is not None and time.monotonic() - kept[0] < FRESH_SECONDS:
                return kept[1]
            try:
                shown = self._read(place, folder)
            except OSError:
                return None
            self._kept = {**dict(list(self._kept.items())[-MAX_KEPT:]), (place, name): (time.monotonic(), shown)}
            return shown

    def _read(self, place: int, folder: RunFolder) -> ShownRun:
        row, events = self._indexes[place].read(folder.path.name)
        samples = {}
        for sample in events.samples:
            path = recorded_path(sample.path, folder.samples_dir)
            with contextlib.suppress(ValueError):  # outside: not shown
                samples[path.relative_to(folder.samples_dir).as_posix()] = sample.step, sample.prompt
        return ShownRun(place, TableRun(folder.path, row), events, samples)

    def sample_path(self, place: int, name: str, below: str) -> Path | None:
        """The file of a sample that the run lists, or of the video beside it; None for anything else.

        below: its path from the folder of samples on, as in ShownRun. No link leads out of that folder.
        """
        run = self.run(place, name)
        if run is None or not self._lists(run, below):
            return None
        top = run.run.folder
        samples = RunFolder(top).samples_dir
        try:
            path, allowed = (samples / below).resolve(strict=True), samples.resolve(strict=True)
        except (OSError, ValueError, RuntimeError):  # gone, a name that no file has, or a circle of links
            return None
        is_inside = path.is_relative_to(allowed) and allowed.is_relative_to(top.resolve())
        return path if is_inside and path.is_file() and path.suffix.lower() in CONTENT_TYPES else None

    def video_of(self, run: ShownRun, below: str) -> str:
        """The path of the video whose first frame is the sample; "" if it is an image."""
        video = str(Path(below).with_suffix(".mp4").as_posix())
        return video if (RunFolder(run.run.folder).samples_dir / video).is_file() else ""

    def _lists(self, run: ShownRun, below: str) -> bool:
        if below in run.samples:
            return True
        return below.endswith(".mp4") and f"{below.removesuffix('.mp4')}.png" in run.samples

    def _folder(self, place: int, name: str) -> RunFolder | None:
        """The folder of a run right below the output folder, not behind a link that leads out of it."""
        if not 0 <= place < len(self.folders) or name.startswith(".") or not name or set(name) & set("/\\\0"):
            return None
        try:
            folder = RunFolder(self.folders[place] / name)
            is_inside = folder.path.resolve(strict=True).parent == self.folders[place]
            return folder if is_inside and event_files(folder) else None
        except (OSError, UserError, ValueError, RuntimeError):
            return None

    def _refresh(self) -> None:
        while not self._is_over.is_set():
            self._is_wanted.wait()
            for index in self._indexes:
                with contextlib.suppress(OSError):  # an index that can't be written only saves time
                    index.refresh(lambda: not self._is_over.is_set())
            if time.monotonic() - self._wanted_at > IDLE_SECONDS and not self._is_over.is_set():
                self._is_wanted.clear()
            self._is_over.wait(REFRESH_SECONDS)
