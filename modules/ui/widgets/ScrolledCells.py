"""Cells of equal size on a canvas that scrolls in both directions: where each of them is, and which are in sight."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.ui.widgets.BatchCanvas import BatchCanvas
from modules.ui.window_system import wheel_notches

if TYPE_CHECKING:
    from modules.ui.App import App

WHEEL_PIXELS = 60


class ScrolledCells(ctk.CTkFrame):
    """The canvas and its scrollbars. A subclass defines the size of a cell and draws what is in sight."""

    def __init__(self, parent: tk.Misc, app: App):
        super().__init__(parent, fg_color="transparent")
        self.app = app
        self.count = 0
        self.shown_size = (1, 1)  # of the canvas, in pixels; asking Tk for it at each cell would take milliseconds
        self._offset = [0, 0]  # pixels scrolled to the right and down
        self._build_canvas()

    # --- for subclasses to override ----------------------------------------------------------------------------------

    def cell_size(self) -> tuple[int, int]:
        """The width and height of a cell, in screen pixels."""
        raise NotImplementedError

    def _draw_later(self) -> None:
        """Draw what is in sight, after all pending events."""
        raise NotImplementedError

    def num_columns(self) -> int:
        """The number of columns, by default as many as fit."""
        return max(1, (self.shown_size[0] - self.margins()[0]) // self.cell_size()[0])

    def margins(self) -> tuple[int, int]:
        """The size in pixels of fixed areas left of and above the cells."""
        return 0, 0

    def number_at(self, place: int) -> int:
        """The number of the cell at a place, counted from the upper left; they differ where some cells are hidden."""
        return place

    def place_of(self, number: int) -> int | None:
        """The place of a cell; None if it is hidden."""
        return number

    # --- public methods ----------------------------------------------------------------------------------------------

    def cell_at(self, x: int, y: int) -> int | None:
        """The number of the cell at a point of the canvas."""
        left, top = self.margins()
        width, height = self.cell_size()
        if x < left or y < top:
            return None
        column, row = (x - left + self._offset[0]) // width, (y - top + self._offset[1]) // height
        place = row * self.num_columns() + column
        return self.number_at(place) if column < self.num_columns() and place < self.count else None

    def corner_of(self, number: int) -> tuple[int, int]:
        """The upper left corner of a cell on the canvas; that of the first place for a hidden cell."""
        width, height = self.cell_size()
        row, column = divmod(self.place_of(number) or 0, self.num_columns())
        left, top = self.margins()
        return left + column * width - self._offset[0], top + row * height - self._offset[1]

    # --- scrolling ---------------------------------------------------------------------------------------------------

    def _content(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(width, height) of all cells, and of the visible area."""
        width, height = self.cell_size()
        columns = self.num_columns()
        left, top = self.margins()
        shown = max(1, self.shown_size[0] - left), max(1, self.shown_size[1] - top)
        return (columns * width, -(-self.count // columns) * height), shown

    def _keep_inside(self) -> None:
        content, shown = self._content()
        for axis in (0, 1):
            self._offset[axis] = min(max(0, self._offset[axis]), max(0, content[axis] - shown[axis]))

    def _move_scrollbars(self) -> None:
        content, shown = self._content()
        for axis, scrollbar in enumerate((self._across, self._down)):
            if content[axis] <= shown[axis]:
                scrollbar.grid_remove()
                continue
            scrollbar.grid()
            start = self._offset[axis] / content[axis]
            place = start, start + shown[axis] / content[axis]
            if scrollbar.get() != place:  # drawing a scrollbar takes a few ms
                scrollbar.set(*place)

    def _scroll(self, axis: int, *how: str) -> None:
        """how: the arguments that a scrollbar passes to its command."""
        content, shown = self._content()
        if how[0] == "moveto":
            self._offset[axis] = int(float(how[1]) * content[axis])
        else:
            step = shown[axis] if how[2].startswith("page") else self.app.theme.scaled(WHEEL_PIXELS)
            self._offset[axis] += int(float(how[1]) * step)
        self._draw_later()

    def _bring_into_sight(self, number: int) -> None:
        row, column = divmod(self.place_of(number) or 0, self.num_columns())
        _, shown = self._content()
        for axis, (place, size) in enumerate(zip((column, row), self.cell_size(), strict=True)):
            lowest = (place + 1) * size - shown[axis]
            self._offset[axis] = min(max(self._offset[axis], lowest), place * size)

    def _numbers_in_sight(self) -> Sequence[int]:
        width, height = self.cell_size()
        left, top = self.margins()
        columns = self.num_columns()
        first_row = self._offset[1] // height
        last_row = (self._offset[1] + self.shown_size[1] - top - 1) // height
        first_column = self._offset[0] // width
        last_column = min(columns - 1, (self._offset[0] + self.shown_size[0] - left - 1) // width)
        rows = range(first_row, last_row + 1)
        places = (row * columns + column for row in rows for column in range(first_column, last_column + 1))
        return [self.number_at(place) for place in places if place < self.count]

    def _on_wheel(self, event: tk.Event, notches: float) -> str:
        across = isinstance(event.state, int) and bool(event.state & 0x1)  # with Shift
        self._scroll(0 if across else 1, "scroll", str(notches), "units")
        return "break"

    def _build_canvas(self) -> None:
        self.grid_rowconfigure(0, weight=1)
        self.grid_columnconfigure(0, weight=1)
        self.canvas = BatchCanvas(self, width=10, height=10, bd=0, highlightthickness=2, takefocus=True)
        self.canvas.grid(row=0, column=0, sticky="nsew")
        # With minimal length, so that showing and hiding them never changes the size of the canvas in their direction,
        # which would toggle them again, for ever.
        self._down = ctk.CTkScrollbar(self, height=10, command=lambda *how: self._scroll(1, *how))
        self._down.grid(row=0, column=1, sticky="ns")
        self._across = ctk.CTkScrollbar(
            self, width=10, orientation="horizontal", command=lambda *how: self._scroll(0, *how)
        )
        self._across.grid(row=1, column=0, sticky="ew")
        self._down.grid_remove()
        self._across.grid_remove()
        self.canvas.bind("<MouseWheel>", lambda event: self._on_wheel(event, -wheel_notches(event)))
        self.canvas.bind("<Button-4>", lambda event: self._on_wheel(event, -1))
        self.canvas.bind("<Button-5>", lambda event: self._on_wheel(event, 1))
