"""The runs and settings files used last, for the start page. No Tk; for threads, as a disk may be slow."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.runs.marks import read_marks
from modules.session.backups import newest_usable
from modules.session.following import RunInfo, find_runs, run_info
from modules.session.RunFolder import RunFolder
from modules.ui.models.trained_images import FOLDER as GENERATED

if TYPE_CHECKING:
    from PIL import Image

MAX_RUNS, MAX_FILES = 6, 4
THUMBNAIL = 128  # the longest side in pixels: enough for a window of twice the size

Action = Literal["Monitor", "Show", "Resume"]


@dataclass(frozen=True)
class RecentRun:
    """text: how far it is or how it ended. action: what to do with it next. sample: its result or newest image, if any.

    thumbnail: that image, as far as it could be read. name: that a person has given it; "" for none.
    """

    folder: Path
    text: str
    action: Action
    sample: Path | None = None
    thumbnail: Image.Image | None = field(default=None, compare=False)
    name: str = ""


@dataclass(frozen=True)
class Recent:
    """gone: remembered run folders that no longer hold a run."""

    runs: tuple[RecentRun, ...] = ()
    files: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


def find_recent(workspace_dir: str, runs: Sequence[str], files: Sequence[str]) -> Recent:
    """The runs beside the run folder `workspace_dir` and the remembered `runs`, running and new ones first, and those
    of the settings `files` that exist."""
    try:
        found = {info.folder: info for info in find_runs(RunFolder(workspace_dir).path.parent)}
    except UserError:  # an invalid folder, which its field reports
        found = {}
    gone = []
    for folder in runs:
        if Path(folder) not in found:
            info = run_info(folder)
            if info is None:
                gone.append(folder)
            else:
                found[info.folder] = info
    newest = sorted(found.values(), key=lambda info: (info.status != "running", -info.time))[:MAX_RUNS]
    now = time.time()
    rows = (_row(info, now) for info in newest)
    existing = tuple(path for path in files if os.path.isfile(path))
    return Recent(tuple(rows), existing[:MAX_FILES], tuple(gone))


def _row(info: RunInfo, now: float) -> RecentRun:
    marks = read_marks(info.folder)
    result = None if marks.result is None else info.folder / marks.result.image
    sample = result if result is not None and result.is_file() else newest_sample(RunFolder(info.folder))
    try:
        thumbnail = None if sample is None else _thumbnail(sample, sample.stat().st_mtime)
    except (OSError, ValueError, SyntaxError):  # just being replaced, or damaged: Pillow raises these
        thumbnail = None
    return RecentRun(info.folder, describe_run(info, now), next_action(info), sample, thumbnail, marks.name)


def newest_sample(run: RunFolder) -> Path | None:
    """The first of the samples of the last step that has any; None if the run has made none."""
    try:
        steps = sorted((path for path in run.samples_dir.iterdir() if path.is_dir()), reverse=True)
    except OSError:
        return None
    steps = [path for path in steps if path.name != GENERATED]  # what was tried afterwards
    return next((path for step in steps for path in sorted(step.glob("*.png"))), None)


@lru_cache(maxsize=64)
def _thumbnail(path: Path, changed: float) -> Image.Image:
    """changed: when the file was last written. Raises OSError, ValueError or SyntaxError if it can't be read."""
    from PIL import Image  # not needed before the window is first drawn

    with Image.open(path, formats=("PNG",)) as image:
        picture = image.convert("RGB")
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    return picture


def describe_run(info: RunInfo, now: float) -> str:
    """Such as "running, step 320 of 500" and "finished yesterday, loss 0.0812". now: in Unix seconds."""
    if info.status == "running":
        return f"running, step {info.step:,}" + (f" of {info.total:,}" if info.total else "")
    if info.status == "finished":
        return f"finished {describe_age(now - info.time)}" + ("" if info.loss is None else f", loss {info.loss:.4f}")
    return f"{info.status} at step {info.step:,}, {describe_age(now - info.time)}"


def describe_age(seconds: float) -> str:
    """Such as "5 minutes ago" and "yesterday"."""
    if seconds < 90:
        return "just now"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} minutes ago"
    hours = round(seconds / 3600)
    if hours < 24:
        return f"{counted(hours, 'hour')} ago"
    days = round(seconds / 86400)
    return "yesterday" if days == 1 else f"{days:,} days ago"


def next_action(info: RunInfo) -> Action:
    """To follow a run, to resume one that has a backup, or to look at its result."""
    if info.status == "running":
        return "Monitor"
    if info.status == "finished":
        return "Show"
    return "Resume" if newest_usable(RunFolder(info.folder)) is not None else "Show"
