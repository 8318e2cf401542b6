"""The list of runs: a row for each, of which only those in sight are drawn."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from modules.runs.RunTable import RunTable, TableRun, loss_text, spoken_duration
from modules.ui.theme import Theme
from modules.ui.widgets.VirtualGrid import Tile, VirtualGrid

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.theme import Pair

ROW_HEIGHT, HEAD_HEIGHT, PICTURE, STAR, GAP = 48, 28, 40, 24, 8  # unscaled pixels
# Title, what it sorts by, and width in unscaled pixels; what comes last in LEFT_OUT goes first in a narrow list.
COLUMNS = (
    ("State", "state", 104),
    ("Started", "started", 94),
    ("Closest preset", "preset", 112),
    ("Base", "base", 130),
    ("Loss", "loss", 62),
    ("Duration", "duration", 78),
    ("Samples", "samples", 68),
)
LEFT_OUT = ("Samples", "Base", "Duration", "Closest preset", "Started", "Loss")  # then the changes, but never the state
NAME_WIDTH, CHANGES_WIDTH = 160, 130  # at least, of the columns that take what is left
STATE_COLOURS: dict[str, Pair] = {
    "running": Theme.accent, "finished": Theme.success, "failed": Theme.error, "stopped": Theme.warning,
}  # fmt: skip


class RunList(VirtualGrid):
    """Shows the runs of `table`. on_sort: called when another order was chosen. on_star: with a run whose star was
    clicked. Runs are numbered in the order in which they were first seen, so a selection stays as the list changes."""

    def __init__(
        self,
        parent: tk.Misc,
        app: App,
        table: RunTable,
        on_current: Callable[[], None],
        on_sort: Callable[[], None],
        on_star: Callable[[TableRun], None],
        on_open: Callable[[TableRun], None],
    ):
        self.table = table
        self._on_sort, self._on_star = on_sort, on_star
        self._numbers: dict[Path, int] = {}
        self._runs: dict[int, TableRun] = {}
        self._pictures_of: Mapping[Path, str] = {}
        self._changes: dict[int, str] = {}
        super().__init__(
            parent, app, lambda number: Tile(""), lambda number: on_current(), on_current,
            lambda number: on_open(self._runs[number]),
        )  # fmt: skip

    # --- public methods ----------------------------------------------------------------------------------------------

    def show_runs(self, pictures: Mapping[Path, str]) -> None:
        """Show what the table now says."""
        runs = self.table.shown()
        self._pictures_of = pictures
        order = [self._numbers.setdefault(run.folder, len(self._numbers)) for run in runs]
        self._runs = dict(zip(order, runs, strict=True))
        self._changes.clear()
        self.show(order)

    @property
    def chosen_runs(self) -> list[TableRun]:
        """The selected runs, in the order in which they are shown."""
        return [self._runs[number] for number in self.selection.in_order if number in self._runs]

    def choose_folders(self, folders: Sequence[Path]) -> None:
        """Select the runs in these folders."""
        numbers = [self._numbers[folder] for folder in folders if folder in self._numbers]
        if numbers:
            self.choose(numbers[0])
            self.select(numbers)

    # --- the cells ---------------------------------------------------------------------------------------------------

    def num_columns(self) -> int:
        return 1

    def cell_size(self) -> tuple[int, int]:
        return max(1, self.canvas.winfo_width()), self.app.theme.scaled(ROW_HEIGHT)

    def margins(self) -> tuple[int, int]:
        return 0, self.app.theme.scaled(HEAD_HEIGHT)

    def resize_by(self, step: int) -> str:
        return "break"  # rows have one height

    def columns(self) -> list[tuple[str, str, int, int]]:
        """(title, what it sorts by, left edge, width) of the columns that there is room for, in pixels."""
        scaled, width = self.app.theme.scaled, self.canvas.winfo_width()
        left = scaled(STAR + PICTURE + 2 * GAP)
        shown = list(COLUMNS)
        room = width - left - scaled(NAME_WIDTH + CHANGES_WIDTH)
        for title in LEFT_OUT:
            if sum(scaled(column[2]) for column in shown) <= room:
                break
            shown = [column for column in shown if column[0] != title]
        spare = max(0, width - left - sum(scaled(column[2]) for column in shown))
        has_changes = spare >= scaled(NAME_WIDTH + CHANGES_WIDTH)
        name = max(scaled(NAME_WIDTH), spare * 9 // 20) if has_changes else spare
        found = [("Run", "name", left, name)]
        left += name
        for title, order, own in shown:
            found.append((title, order, left, scaled(own)))
            left += scaled(own)
        return [*found, ("Differs from the one before", "", left, width - left)] if has_changes else found

    def draw_cell(self, number: int, x: int, y: int) -> None:
        theme, scaled, run = self.app.theme, self.app.theme.scaled, self._runs[number]
        width, height = self.cell_size()
        is_selected = number in self.selection.numbers
        if is_selected:
            self.canvas.create_rectangle(x, y, width, y + height - 1, fill=theme.now(theme.selected), width=0)
        self.canvas.create_line(x, y + height - 1, width, y + height - 1, fill=theme.now(theme.line))
        text = theme.on_accent if is_selected else theme.text
        faint = theme.on_accent if is_selected else theme.muted
        middle = y + (height - scaled(17)) // 2
        star = "★" if run.row.marks.star else "☆"
        self.draw_text(
            scaled(6),
            middle - scaled(2),
            star,
            scaled(STAR),
            16,
            theme.warning if run.row.marks.star and not is_selected else faint,
        )
        if picture := self._pictures_of.get(run.folder):
            self.draw_picture(picture, scaled(STAR + GAP), y + scaled(4), scaled(PICTURE), scaled(PICTURE))
        for title, _, left, own in self.columns():
            room = own - scaled(GAP)
            if title == "Run":
                self._draw_name(run, left, y, room, text, faint)
            elif title == "State":
                colour = text if is_selected else STATE_COLOURS.get(run.row.status, theme.muted)
                self.draw_text(left, middle, run.state(), room, 12, colour)
            else:
                self.draw_text(left, middle, self._cell(number, run, title), room, 12, faint)
        if number == self.selection.current:
            edge = theme.now(theme.text if is_selected else theme.focus)
            self.canvas.create_rectangle(x + 1, y + 1, width - 2, y + height - 2, outline=edge)

    def draw_headers(self) -> None:
        theme, scaled, canvas = self.app.theme, self.app.theme.scaled, self.canvas
        height = self.margins()[1]
        canvas.create_rectangle(0, 0, canvas.winfo_width(), height, fill=theme.now(theme.control), width=0)
        for title, order, left, own in self.columns():
            arrow = "" if order != self.table.order else " ↓" if self.table.is_descending else " ↑"
            self.draw_text(left, scaled(6), title + arrow, own - scaled(GAP), 12, theme.muted)

    def _draw_name(self, run: TableRun, left: int, y: int, room: int, text: Pair, faint: Pair) -> None:
        scaled, marks = self.app.theme.scaled, run.row.marks
        below = "  ".join((*(f"#{tag}" for tag in marks.tags), run.row.name if marks.name else "", marks.note)).strip()
        top = y + scaled(6 if below else 15)
        self.draw_text(left, top, run.row.shown_name, room, 13, text, "bold", is_name=True)
        if below:
            self.draw_text(left, y + scaled(26), below, room, 11, faint)

    def _cell(self, number: int, run: TableRun, title: str) -> str:
        row = run.row
        if title == "Started":
            when = row.started or row.time
            return time.strftime("%d %b %H:%M", time.localtime(when)) if when else ""
        if title == "Closest preset":
            return run.preset if row.is_read else "reading…"
        if title == "Base":
            return run.base
        if title == "Loss":
            return loss_text(row.loss)
        if title == "Duration":
            return spoken_duration(row.seconds)
        if title == "Samples":
            return f"{row.num_samples:,}" if row.num_samples else ""
        if number not in self._changes:
            self._changes[number] = run.changes_text()
        return self._changes[number]

    # --- clicks ------------------------------------------------------------------------------------------------------

    def _image_at(self, x: int, y: int) -> int | None:
        return self.cell_at(x, y)

    def _on_click(self, event: tk.Event) -> None:
        if event.y < self.margins()[1]:
            for _, order, left, own in self.columns():
                if order and left <= event.x < left + own:
                    self.table.sort_by(order)
                    self._on_sort()
            return
        number = self.cell_at(event.x, event.y)
        if number is not None and event.x < self.app.theme.scaled(STAR + GAP // 2):
            self._on_star(self._runs[number])
            return
        super()._on_click(event)
        self._frame_from = None  # a list has no space beside its rows to drag from
