"""Compare runs: figures, what differs in their settings, and their curves, smoothed alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.config.errors import UserError
from modules.runs.Curve import Axis, Point, positions, smoothed
from modules.runs.RunEvents import RunEvents
from modules.runs.RunIndex import RunIndex
from modules.runs.RunRow import RunRow
from modules.runs.settings_of_run import Difference, differences
from modules.session.following import is_run_folder

SMOOTHED_STEPS = 50.0  # as the trainer's running mean, whose factor is 0.98


@dataclass(frozen=True)
class ComparedRun:
    """A run that is compared. folder: of the run."""

    folder: Path
    row: RunRow
    events: RunEvents

    @property
    def name(self) -> str:
        return self.row.shown_name

    def points(self) -> list[Point]:
        return self.events.curve.points()


@dataclass(frozen=True)
class Comparison:
    """runs: in the order in which they were given. differences: of their settings."""

    runs: tuple[ComparedRun, ...]
    differences: tuple[Difference, ...]

    def to_plain(self, axis: Axis = "step", num_steps: float = SMOOTHED_STEPS) -> dict[str, Any]:
        """As JSON data, with curves over `axis`, smoothed over `num_steps` steps."""
        return {
            "axis": axis,
            "smoothed_over_steps": num_steps,
            "runs": [
                {
                    **described(run.row, run.folder),
                    "curve": [list(pair) for pair in line_of(run.points(), axis, num_steps)],
                    "validation": [list(pair) for pair in run.events.validation],
                }
                for run in self.runs
            ],
            "differences": [
                {"setting": one.path, "label": one.label, "values": list(one.values)} for one in self.differences
            ],
        }


def compare_runs(folders: Sequence[str | Path]) -> Comparison:
    """Raises UserError if a folder holds no run."""
    runs = tuple(map(_compared, folders))
    return Comparison(runs, tuple(differences([run.row.settings for run in runs])))


def line_of(points: Sequence[Point], axis: Axis, num_steps: float) -> list[tuple[float, float]]:
    """(place on the axis, smoothed loss) of a curve, where it has any."""
    pairs = zip(positions(points, axis), smoothed(points, num_steps), strict=True)
    return [(x, y) for x, y in pairs if math.isfinite(y)]


def described(row: RunRow, folder: Path) -> dict[str, Any]:
    """A run as JSON data, for scripts."""
    plain = row.to_plain()
    marks = plain.pop("marks")
    plain["saved"] = [{"step": step, "path": path} for step, path in row.saved]
    return {"folder": str(folder), **plain, "marks": marks}


def _compared(folder: str | Path) -> ComparedRun:
    path = Path(folder).expanduser().absolute()
    if not is_run_folder(path):
        raise UserError(f"{str(folder)!r} holds no run: give the output folder of one, with its folder 'events'.")
    index = RunIndex(path.parent)
    try:
        run, events = index.read(path.name)
    except OSError as error:
        raise UserError(f"{str(folder)!r} can't be read ({error.strerror}): check its disk.") from error
    return ComparedRun(path, run, events)
