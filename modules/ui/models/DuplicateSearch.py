"""The search for images that look alike, are blurred or noisy, in a separate process: each is decoded once. No Tk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, NamedTuple

from modules.config.errors import UserError
from modules.config.installation import IMPORT_FOLDER, PACKAGE, command_name
from modules.data.videos import is_video
from modules.ui.models.DatasetView import DatasetItem, LookAlike

NICENESS = 10
REPORT_EVERY = 50  # images


class Searched(NamedTuple):
    """groups: of images that look alike, in each the best one first. blurred, noisy: paths, as of ImageMeasures."""

    groups: list[list[LookAlike]]
    blurred: list[str]
    noisy: list[str]


class DuplicateSearch:
    """One search. `run` may take long; `cancel` may be called meanwhile, from another thread.

    items: by the folder of their concept. num_done: of how many images are measured.
    """

    def __init__(self, items: Mapping[str, Sequence[DatasetItem]]):
        self._paths: dict[str, str] = {}  # absolute, for the other process -> as the items have them
        self._question = {
            os.path.abspath(os.path.expanduser(folder)): [self._values(item) for item in of_folder if _is_image(item)]
            for folder, of_folder in items.items()
        }
        self.num_images = sum(map(len, self._question.values()))
        self.num_done = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._is_canceled = False
        self._lock = threading.Lock()

    def run(self) -> Searched | None:
        """What was found; None if it was canceled.

        Raises UserError if the process fails.
        """
        with self._lock:
            if self._is_canceled:
                return None
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", f"{PACKAGE}.ui.models.DuplicateSearch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
                cwd=IMPORT_FOLDER,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        found = None
        try:
            with process.stdin:
                process.stdin.write(json.dumps(self._question).encode())
            for line in process.stdout:
                answer = json.loads(line)
                if isinstance(answer, int):
                    self.num_done = answer
                else:
                    found = answer
        except (OSError, ValueError):  # it has ended
            found = None
        process.wait()
        if found is None and not self._is_canceled:
            raise UserError(f"The search for duplicates has failed: run {command_name('check_data')}, which says why.")
        if self._is_canceled or found is None:
            return None
        blurred, noisy = ([self._paths[path] for path in found[name]] for name in ("blurred", "noisy"))
        groups = [[LookAlike(self._paths[path], *measured) for path, *measured in group] for group in found["groups"]]
        return Searched(groups, blurred, noisy)

    def _values(self, item: DatasetItem) -> tuple[str, int, int]:
        path = os.path.abspath(item.path)
        self._paths[path] = item.path
        return path, item.width * item.height, item.num_bytes

    def cancel(self) -> None:
        with self._lock:
            self._is_canceled = True
            if self._process is not None:
                self._process.kill()


def _is_image(item: DatasetItem) -> bool:
    return item.width > 0 and not is_video(item.path)


def search(question: Mapping[str, Sequence[tuple[str, int, int]]], tell: Callable[[object], None]) -> None:
    """Answer with the number of images that are measured, now and then, and with what is found: in the process."""
    from modules.curation.duplicates import Candidate, find_duplicates
    from modules.curation.MeasureIndex import MeasureIndex

    candidates: list[Candidate] = []
    num_before = 0
    for folder, images in question.items():

        def count(done: int, before: int = num_before) -> None:
            if done % REPORT_EVERY == 0:
                tell(before + done)

        measured = MeasureIndex(folder).of([path for path, _, _ in images], count)
        for path, num_pixels, num_bytes in images:
            measures = measured[path]
            if not isinstance(measures, str):
                candidates.append(Candidate(path, num_pixels, num_bytes, measures))
        num_before += len(images)
    of_path = {one.path: one.measures for one in candidates}

    def describe(path: str) -> tuple[str, float, float]:
        return path, of_path[path].sharpness, of_path[path].noise

    tell(
        {
            "groups": [[*map(describe, (group.best, *group.others))] for group in find_duplicates(candidates)],
            "blurred": [path for path, measures in of_path.items() if measures.is_blurred],
            "noisy": [path for path, measures in of_path.items() if measures.is_noisy],
        }
    )


def serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    def tell(answer: object) -> None:
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()

    search(json.load(questions), tell)


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    serve(sys.stdin.buffer, sys.stdout.buffer)
