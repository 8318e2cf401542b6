"""A small list under the cursor of a text box: what may be meant by what is typed, each with a count."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from modules.ui.widgets.TextWidths import TextWidths

if TYPE_CHECKING:
    from modules.ui.App import App

PAD, GAP = 8, 20  # unscaled pixels beside a row, and at least between its text and its count
LINE = 6  # unscaled pixels between two rows
MAX_WIDTH = 360  # unscaled


class SuggestionList:
    """Never takes the focus. on_take: called when a row was clicked, with its number.

    chosen: the number of the marked row; None without.
    """

    def __init__(self, box: tk.Text, app: App, on_take: Callable[[int], None]):
        self._box, self._app, self._on_take = box, app, on_take
        self._canvas: tk.Canvas | None = None
        self._rows: Sequence[tuple[str, int]] = ()
        self._row_height = 1
        self.chosen: int | None = None

    @property
    def is_open(self) -> bool:
        return bool(self._rows)

    def show(self, rows: Sequence[tuple[str, int]], chosen: int | None) -> None:
        """Show texts with their counts; none hide the list."""
        self._rows, self.chosen = rows, chosen
        if not rows:
            self.hide()
            return
        self._draw()
        self._place()

    def hide(self) -> None:
        self._rows, self.chosen = (), None
        if self._canvas is not None:
            self._canvas.place_forget()

    def follow(self) -> None:
        """Stay at the cursor of a box that got another place or size."""
        if self._rows:
            self._place()

    def move(self, step: int) -> None:
        """Mark the next (1) or the former (-1) row; behind the last one comes the first."""
        if self._rows:
            before = -1 if self.chosen is None and step > 0 else self.chosen or 0
            self.chosen = (before + step) % len(self._rows)
            self._draw()

    def _draw(self) -> None:
        theme, canvas = self._app.theme, self._open()
        font, pad = theme.plain_font(12), theme.scaled(PAD)
        widths = TextWidths(canvas)
        measured = widths.font(font)
        self._row_height = measured.metrics("linespace") + theme.scaled(LINE)
        counts = [f"{count:,}" for _, count in self._rows]
        count_width = max(map(measured.measure, counts)) + theme.scaled(GAP)
        most = min(theme.scaled(MAX_WIDTH), self._box.winfo_toplevel().winfo_width()) - 2 * pad - count_width
        texts = [widths.cut(text, most, font) for text, _ in self._rows]
        width = max(map(measured.measure, texts)) + count_width + 2 * pad
        canvas.configure(
            width=width, height=self._row_height * len(texts), bg=theme.now(theme.control),
            highlightbackground=theme.now(theme.border),
        )  # fmt: skip
        canvas.delete("all")
        for number, (text, count) in enumerate(zip(texts, counts, strict=True)):
            top, is_chosen = number * self._row_height + 1, number == self.chosen
            if is_chosen:
                fill = theme.now(theme.selected)
                canvas.create_rectangle(1, top, width + 1, top + self._row_height, fill=fill, width=0)
            ink, faint = (theme.on_accent, theme.on_accent) if is_chosen else (theme.text, theme.muted)
            middle = top + self._row_height // 2
            canvas.create_text(pad, middle, text=text, anchor="w", fill=theme.now(ink), font=font)
            canvas.create_text(width - pad, middle, text=count, anchor="e", fill=theme.now(faint), font=font)

    def _open(self) -> tk.Canvas:
        if self._canvas is None:
            self._canvas = tk.Canvas(self._box.winfo_toplevel(), bd=0, highlightthickness=1, takefocus=False)
            self._canvas.bind("<Button-1>", self._on_click)
        return self._canvas

    def _place(self) -> None:
        """Below the line of the cursor, or above it where there is no room, and inside of the window."""
        canvas, box, top = self._open(), self._box, self._box.winfo_toplevel()
        at = box.bbox("insert")
        if at is None:  # scrolled out of sight
            self.hide()
            return
        x, y = box.winfo_rootx() - top.winfo_rootx() + at[0], box.winfo_rooty() - top.winfo_rooty() + at[1]
        width, height = canvas.winfo_reqwidth(), canvas.winfo_reqheight()
        below = y + at[3] + 2
        if below + height > top.winfo_height():
            below = max(0, y - height - 2)
        canvas.place(x=max(0, min(x, top.winfo_width() - width)), y=below)
        tk.Misc.lift(canvas)

    def _on_click(self, event: tk.Event) -> str:
        number = (event.y - 1) // self._row_height
        if 0 <= number < len(self._rows):
            self._on_take(number)
        return "break"  # the text box keeps the focus
