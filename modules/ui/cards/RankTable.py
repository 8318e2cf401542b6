"""The live table of a run's ranks: state, speed and heartbeat."""

from __future__ import annotations

import tkinter
from collections.abc import Callable, Sequence
from tkinter import ttk
from typing import TYPE_CHECKING

from modules.ui.models.run_text import ENDED_BADLY, data_wait, describe_memory, percent
from modules.ui.models.RunState import RankRow
from modules.ui.widgets.fitting import fit_columns

if TYPE_CHECKING:
    from modules.ui.App import App

MIN_ROWS, MAX_ROWS = 2, 12

# (name, title, width)
COLUMNS = (
    ("rank", "Rank", 50),
    ("device", "Device", 100),
    ("state", "State", 90),
    ("step", "Step", 70),
    ("steps", "it/s", 70),
    ("samples", "img/s", 70),
    ("loss", "Loss", 80),
    ("memory", "Memory (peak), GiB", 140),
    ("wait", "Data wait", 80),
    ("heartbeat", "Heartbeat", 80),
)


class RankTable(ttk.Treeview):
    """chosen: called with the rank of the row that the user selects, None if the selection is cleared."""

    def __init__(self, parent: tkinter.Misc, app: App, chosen: Callable[[int | None], None]):
        names = [name for name, _, _ in COLUMNS]
        super().__init__(parent, columns=names, show="headings", height=MIN_ROWS, selectmode="browse")
        self._app, self._chosen = app, chosen
        for name, title, _ in COLUMNS:
            self.heading(name, text=title, anchor="w")
        self._fit_columns = fit_columns(self, {name: width for name, _, width in COLUMNS}, app.theme)
        self._style()
        self._end_theme = app.theme.on_change(self._style)
        self.bind("<<TreeviewSelect>>", lambda event: self._tell())
        self.bind("<Escape>", lambda event: self.selection_set(()))

    def destroy(self) -> None:
        self._end_theme()
        super().destroy()

    def show(self, ranks: Sequence[RankRow]) -> None:
        """Update the rows; only changes are written, and the selection is kept."""
        wanted = {str(row.rank): row for row in ranks}
        for item in set(self.get_children()) - wanted.keys():
            self.delete(item)
        for item, row in wanted.items():
            values, tags = row_texts(row), ("bad",) if row.state in ENDED_BADLY else ()
            if not self.exists(item):
                self.insert("", "end", iid=item, values=values, tags=tags)
            elif tuple(map(str, self.item(item, "values"))) != values or tuple(self.item(item, "tags")) != tags:
                self.item(item, values=values, tags=tags)
        rows = max(MIN_ROWS, min(MAX_ROWS, len(wanted)))
        if int(str(self.cget("height"))) != rows:
            self.configure(height=rows)

    def _tell(self) -> None:
        selected = self.selection()
        self._chosen(int(selected[0]) if selected else None)

    def _style(self) -> None:
        self._fit_columns()
        self.tag_configure("bad", foreground=self._app.theme.now(self._app.theme.error))


def row_texts(row: RankRow) -> tuple[str, ...]:
    """The cells of a rank's row; a dash for unknown values."""
    wait = data_wait(row)
    texts = (
        str(row.rank),
        row.device,
        row.state,
        str(row.step) if row.step else None,
        _figure(row.steps_per_second, "{:.2f}"),
        _figure(row.samples_per_second, "{:.1f}"),
        _figure(row.loss, "{:.4f}"),
        describe_memory(row),
        None if wait is None else percent(wait),
        _figure(row.heartbeat_seconds, "{:.1f} s"),
    )
    return tuple(text or "-" for text in texts)


def _figure(value: float | None, form: str) -> str | None:
    return None if value is None else form.format(value)
