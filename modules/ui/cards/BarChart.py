"""Labeled bars, one below the other, of which one can be chosen: by a click, or by arrows and Return."""

from __future__ import annotations

import tkinter
from collections.abc import Callable
from typing import TYPE_CHECKING

from modules.config.visible_text import visible_line
from modules.ui.cards.CardCanvas import CardCanvas
from modules.ui.theme import Theme
from modules.ui.widgets.fitting import cut_text
from modules.ui.widgets.TextWidths import measuring_font

if TYPE_CHECKING:
    from tkinter import font as tkfont

    from modules.ui.App import App
    from modules.ui.models.figure_charts import Chart

ROW, MARK_ROW, BAR_HEIGHT, GAP = 22, 18, 12, 8  # unscaled pixels
MAX_SHARE = 0.4  # of the width, of the labels and of the values
FONT_SIZE = 12


class BarChart(CardCanvas):
    """on_pick: called with the label of a bar that is chosen. picked: the bar that is drawn as chosen, "" for none."""

    def __init__(self, parent: tkinter.Misc, app: App, on_pick: Callable[[str], object]):
        super().__init__(parent, app)
        self.configure(takefocus=1, cursor="hand2", highlightthickness=2)
        self.chart: Chart | None = None
        self.picked = ""
        self._on_pick = on_pick
        self._at: int | None = None  # the bar under the pointer, or that arrows have led to
        self._edges: list[tuple[int, int]] = []  # top and bottom of each bar's row
        self.bind("<Motion>", lambda event: self._point_at(self.bar_at(event.y)))
        self.bind("<Leave>", lambda event: self._point_at(None))
        self.bind("<Button-1>", lambda event: self._pick(self.bar_at(event.y)))
        self.bind("<Up>", lambda event: self._go(-1))
        self.bind("<Down>", lambda event: self._go(1))
        for key in ("<Return>", "<space>"):
            self.bind(key, lambda event: self._pick(self._at))
        self.bind("<FocusOut>", lambda event: self._point_at(None))

    # --- public methods ----------------------------------------------------------------------------------------------

    def show(self, chart: Chart) -> None:
        self.chart = chart
        self._place_rows()
        self.redraw()

    def show_picked(self, label: str) -> None:
        """Draw the bar of this label as the chosen one; "" for none."""
        self.picked = label
        self.redraw()

    def bar_at(self, y: int) -> int | None:
        """The number of the bar whose row is at this height."""
        return next((number for number, (top, bottom) in enumerate(self._edges) if top <= y < bottom), None)

    # --- drawing -----------------------------------------------------------------------------------------------------

    def contents(self) -> tuple | None:
        return None if self.chart is None else (self.chart, self.picked, self._at)

    def draw(self) -> None:
        assert self.chart is not None  # else there are no contents
        theme, chart = self._app.theme, self.chart
        self.configure(highlightcolor=theme.now(Theme.focus), highlightbackground=theme.now(Theme.card))
        height = self._place_rows()
        self._set_height(height)
        font = measuring_font(self, theme.plain_font(FONT_SIZE))
        edge, gap, width = theme.scaled(6), theme.scaled(GAP), self.winfo_width()
        most = int(width * MAX_SHARE)
        labels = [cut_text(visible_line(bar.label), most, font.measure) for bar in chart.bars]
        left = edge + max(map(font.measure, labels), default=0) + gap
        right = width - edge - max((font.measure(bar.text) for bar in chart.bars), default=0) - gap
        right = max(right, left + theme.scaled(16))
        longest = max((bar.value for bar in chart.bars), default=0) or 1
        for number, (bar, label) in enumerate(zip(chart.bars, labels, strict=True)):
            top, bottom = self._edges[number]
            middle, half = (top + bottom) // 2, theme.scaled(BAR_HEIGHT) // 2
            is_picked = bar.label == self.picked
            if is_picked or number == self._at:
                fill = theme.now(Theme.selected if is_picked else Theme.control_hover)
                self.create_rectangle(0, top, width, bottom, fill=fill, width=0)
            ink = theme.now(Theme.on_accent if is_picked else Theme.text)
            self.create_text(edge, middle, text=label, anchor="w", fill=ink, font=font)
            self.create_text(width - edge, middle, text=bar.text, anchor="e", fill=ink, font=font)
            end = left + max(1, round((right - left) * bar.value / longest)) if bar.value else left
            if bar.value:
                colour = theme.now(Theme.on_accent if is_picked else Theme.accent)
                self.create_rectangle(left, middle - half, end, middle + half, fill=colour, width=0)
            if bar.dark:
                start = left + round((right - left) * (bar.value - bar.dark) / longest)
                self.create_rectangle(start, middle - half, end, middle + half, fill=theme.now(Theme.warning), width=0)
        self._draw_marks(edge, width, font)

    def _draw_marks(self, edge: int, width: int, font: tkfont.Font) -> None:
        assert self.chart is not None  # it is being drawn
        theme = self._app.theme
        colour, high = theme.now(Theme.warning), theme.scaled(MARK_ROW)
        for number, mark in enumerate(self.chart.marks):
            before = sum(other.place == mark.place for other in self.chart.marks[:number])
            same = sum(other.place == mark.place for other in self.chart.marks)
            below = self._edges[mark.place][0] if mark.place < len(self._edges) else self._edges[-1][1] + same * high
            middle = below - (same - before) * high + high // 2
            text = self.create_text(width - edge, middle, text=mark.text, anchor="e", fill=colour, font=font)
            start = self.bbox(text)[0] - theme.scaled(4)
            self.create_line(edge, middle, start, middle, fill=colour, dash=(4, 3))

    def _place_rows(self) -> int:
        """Decide where each bar is; returns the height of all, in screen pixels."""
        theme, y = self._app.theme, 2
        self._edges = []
        if self.chart is None:
            return y
        row, mark_row = theme.scaled(ROW), theme.scaled(MARK_ROW)
        for number in range(len(self.chart.bars)):
            y += mark_row * sum(mark.place == number for mark in self.chart.marks)
            self._edges.append((y, y + row))
            y += row
        return y + mark_row * sum(mark.place >= len(self.chart.bars) for mark in self.chart.marks) + 2

    # --- choosing ----------------------------------------------------------------------------------------------------

    def _point_at(self, number: int | None) -> None:
        if number != self._at:
            self._at = number
            self.redraw()

    def _go(self, step: int) -> str:
        last = len(self._edges) - 1
        if last >= 0:
            first = 0 if step > 0 else last
            self._point_at(first if self._at is None else min(max(0, self._at + step), last))
        return "break"

    def _pick(self, number: int | None) -> str:
        self.focus_set()
        if number is not None and self.chart is not None and number < len(self.chart.bars):
            self._on_pick(self.chart.bars[number].label)
        return "break"
