"""All runs as a table: which are shown, in which order, and what is said in their cells."""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.config.describe import settings_by_path
from modules.config.explain import generic_path
from modules.runs.RunRow import RunRow
from modules.runs.settings_of_run import Difference, differences, value_text

ARROW = "→"
_ABSOLUTE = re.compile(r"[/~\\]|[A-Za-z]:[/\\]")


@dataclass(frozen=True)
class TableRun:
    """folder: of the run. before: the run in the same output folder that was started before it; None for the first."""

    folder: Path
    row: RunRow
    before: RunRow | None = None

    @property
    def base(self) -> str:
        """The base model: the last part of its path or name."""
        settings = self.row.settings
        if settings is None:
            return ""
        base = str(settings.get("model.base", settings_by_path()["model.base"].default))
        return Path(base.replace("\\", "/").rstrip("/")).name

    @property
    def preset(self) -> str:
        """The closest preset, and how many settings differ from it."""
        row = self.row
        return f"{row.preset} +{row.num_changes}" if row.preset and row.num_changes else row.preset

    def changes(self) -> list[Difference]:
        """What differs from the run before: values of that one, then of this."""
        return [] if self.before is None else differences([self.before.settings, self.row.settings])

    def changes_text(self, most: int = 3) -> str:
        """The first of the differences in one line, with the last two parts of paths."""
        if self.before is None:
            return "first run here" if self.row.is_read else ""
        found = self.changes()
        shown = [f"{one.label} {f' {ARROW} '.join(_shortened(one))}" for one in found[:most]]
        return "; ".join([*shown, *([f"{len(found) - most} more"] if len(found) > most else [])]) or "nothing"

    def state(self) -> str:
        """Such as "finished", and how far it is or was where that is not its last step."""
        row = self.row
        if row.total and row.step and row.step < row.total:
            return f"{row.status} {row.step:,}/{row.total:,}"
        return row.status


def _shortened(difference: Difference) -> Sequence[str]:
    """The values; absolute paths by their last two parts, unless these are the same for all."""
    values, info = difference.values, settings_by_path().get(generic_path(difference.path))
    if info is None or info.format in ("", "long"):
        return values
    parts = [re.split(r"[/\\]", value.rstrip("/\\")) for value in values]
    short = ["/".join(one[-2:]) if _ABSOLUTE.match(value) else value for value, one in zip(values, parts, strict=True)]
    return short if len(set(short)) > 1 else values


def _number(value: float | None) -> tuple[bool, float]:
    return value is None, value or 0.0


SORTS: dict[str, Callable[[TableRun], Any]] = {
    "started": lambda run: run.row.started or run.row.time,
    "name": lambda run: run.row.shown_name.lower(),
    "state": lambda run: (run.row.status, run.row.started),
    "preset": lambda run: (run.preset, run.row.started),
    "base": lambda run: (run.base.lower(), run.row.started),
    "loss": lambda run: _number(run.row.loss),
    "duration": lambda run: run.row.seconds,
    "steps": lambda run: run.row.step,
    "samples": lambda run: run.row.num_samples,
}
"""What the table can be sorted by."""
DESCENDING = ("started", "duration", "steps", "samples")  # at first

FILTERS: dict[str, Callable[[TableRun], bool]] = {
    "all": lambda run: True,
    "starred": lambda run: run.row.marks.star,
    "running": lambda run: run.row.status == "running",
    "finished": lambda run: run.row.status == "finished",
    "stopped": lambda run: run.row.status in ("stopped", "ended"),
    "failed": lambda run: run.row.status == "failed",
}


class RunTable:
    """The runs of one or several output folders, of which those that pass filter and search are shown, in an order.

    text: words that all have to be in what is said of a run; one such as tag:cat or base:sdxl only there.
    """

    def __init__(self) -> None:
        self.runs: list[TableRun] = []
        self.filter_name, self.text = "all", ""
        self.order, self.is_descending = "started", True
        self._texts: dict[Path, dict[str, str]] = {}

    def take(self, found: Iterable[tuple[str | os.PathLike, Sequence[RunRow]]]) -> None:
        """Show these rows. found: (output folder, its rows)."""
        self.runs, self._texts = [], {}
        for folder, rows in found:
            self.runs += with_those_before(Path(folder), rows)

    def shown(self) -> list[TableRun]:
        """The runs that are shown, in their order."""
        wanted, passes = self.text.lower().split(), FILTERS[self.filter_name]
        found = [run for run in self.runs if passes(run) and all(self._has(run, word) for word in wanted)]
        return sorted(found, key=SORTS[self.order], reverse=self.is_descending)

    def sort_by(self, order: str) -> None:
        """Sort by another column, or by the same one the other way round."""
        self.is_descending = not self.is_descending if order == self.order else order in DESCENDING
        self.order = order

    def counts(self) -> dict[str, int]:
        """How many runs pass each filter."""
        return {name: sum(map(passes, self.runs)) for name, passes in FILTERS.items()}

    def _has(self, run: TableRun, word: str) -> bool:
        place, colon, rest = word.partition(":")
        texts = self._texts.get(run.folder)
        if texts is None:
            texts = self._texts[run.folder] = _texts_of(run)
        return rest in texts[place] if colon and place in texts else word in texts[""]


def with_those_before(folder: Path, rows: Sequence[RunRow]) -> list[TableRun]:
    """The runs of an output folder, each with the one that was started before it."""
    dated = sorted((row for row in rows if row.is_read and row.started), key=lambda row: (row.started, row.name))
    times = [(row.started, row.name) for row in dated]

    def before(row: RunRow) -> RunRow | None:
        place = bisect_left(times, (row.started, row.name))
        return dated[place - 1] if row.is_read and row.started and place else None

    return [TableRun(folder / row.name, row, before(row)) for row in rows]


def spoken_duration(seconds: float) -> str:
    """Such as "40 s", "12 min" or "3 h 20 min"; "" for none."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{round(seconds)} s" if seconds else ""
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def loss_text(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.4f}"


def _texts_of(run: TableRun) -> dict[str, str]:
    """What words are looked for in, by the name of a place; "" for everywhere."""
    row, marks = run.row, run.row.marks
    texts = {
        "name": f"{row.shown_name} {row.name}",
        "tag": " ".join(marks.tags),
        "note": marks.note,
        "state": row.status,
        "preset": run.preset,
        "base": run.base,
        "family": value_text("family", (row.settings or {}).get("family", settings_by_path()["family"].default)),
    }
    lowered = {place: text.lower() for place, text in texts.items()}
    return {**lowered, "": " ".join((*lowered.values(), row.reason.lower()))}
