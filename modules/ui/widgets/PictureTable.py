"""A table of images by row and column; the last two that were chosen are compared beside it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.errors import UserError
from modules.config.visible_text import visible_line
from modules.data.images import load_image
from modules.ui.widgets.BeforeAfter import BeforeAfter
from modules.ui.widgets.fitting import cut_middle, cut_text
from modules.ui.widgets.PictureCanvas import PictureCanvas

if TYPE_CHECKING:
    from PIL import Image

    from modules.ui.App import App

SIDE, GAP, NAMES_WIDTH, HEAD_HEIGHT = 128, 6, 150, 40  # unscaled pixels
COMPARED = 1024  # maximum side in pixels of compared images, which is enough for a screen
STAR = "★"
MAX_TITLE = 14  # letters of the first line of a column's title, over a compared image


@dataclass(frozen=True)
class PictureTable:
    """rows: their titles, with a line below. columns: their titles, of up to two lines. paths: by (row, column).

    starred: one of the paths.
    """

    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    paths: dict[tuple[int, int], str] = field(default_factory=dict)
    starred: str = ""

    def title(self, row: int, column: int) -> str:
        """Of a column, short enough for one half of an image."""
        first, *rest = self.columns[column].split("\n")
        return " ".join((cut_middle(first, MAX_TITLE, len), *rest))


class PictureTableView(ctk.CTkFrame):
    """on_choose: called with the row and column that were chosen. empty: what is said as long as there is no image."""

    def __init__(
        self, parent: tk.Misc, app: App, empty: str, on_choose: Callable[[int, int], None] = lambda row, column: None
    ):
        super().__init__(parent, fg_color="transparent")
        self.app = app
        self.table = PictureTable()
        self.compared: list[tuple[int, int]] = []  # up to two cells, the last one chosen last
        self._on_choose = on_choose
        self.grid_columnconfigure(0, weight=3, uniform="table")
        self.grid_columnconfigure(1, weight=2, uniform="table")
        self.grid_rowconfigure(0, weight=1)
        self.cells = _Cells(self, app, empty, self._choose)
        self.cells.grid(row=0, column=0, sticky="nsew", padx=(0, 4))
        self.comparison = BeforeAfter(self, app)
        self.comparison.grid(row=0, column=1, sticky="nsew", padx=(4, 0))
        self.comparison.show_message("Choose two images, one after the other, to compare them.")

    def show(self, table: PictureTable) -> None:
        """Show another table, or the same with more images."""
        if (self.table.rows, self.table.columns) != (table.rows, table.columns):
            self.compared = []
            self.comparison.show_message("Choose two images, one after the other, to compare them.")
        self.table = self.cells.table = table
        self.cells.show_count(len(table.rows) * len(table.columns))

    def compare(self, first: tuple[int, int], second: tuple[int, int]) -> None:
        """Show two cells beside each other."""
        self.compared = [first, second]
        paths = self.table.paths[first], self.table.paths[second]
        titles = self.table.title(*first), self.table.title(*second)

        def show(pictures: tuple[Image.Image, Image.Image]) -> None:
            if self.winfo_exists() and self.compared == [first, second]:
                self.comparison.show(*pictures, titles)

        def fail(error: Exception) -> None:
            if not isinstance(error, UserError):
                raise error
            if self.winfo_exists():
                self.comparison.show_message(str(error))

        self.app.in_background(lambda: _load_both(paths), show, fail)

    def _choose(self, number: int) -> None:
        cell = divmod(number, len(self.table.columns))
        if cell not in self.table.paths:
            return
        self._on_choose(*cell)
        before = self.compared[-1] if self.compared else cell
        self.compare(before, cell)


class _Cells(PictureCanvas):
    """The table; the titles on the left and at the top stay visible."""

    def __init__(self, parent: tk.Misc, app: App, empty: str, on_choose: Callable[[int], None]):
        self.table = PictureTable()
        self._empty = empty
        super().__init__(parent, app, on_choose)

    def empty_text(self) -> str:
        return self._empty

    def num_columns(self) -> int:
        return max(1, len(self.table.columns))

    def cell_size(self) -> tuple[int, int]:
        side = self.app.theme.scaled(SIDE + GAP)
        return side, side

    def margins(self) -> tuple[int, int]:
        scaled = self.app.theme.scaled
        names = min(scaled(NAMES_WIDTH), self.canvas.winfo_width() // 3)
        return (names, scaled(HEAD_HEIGHT)) if self.count else (0, 0)

    def draw_cell(self, number: int, x: int, y: int) -> None:
        theme = self.app.theme
        side = theme.scaled(SIDE)
        path = self.table.paths.get(divmod(number, len(self.table.columns)))
        if path is None:
            self.canvas.create_rectangle(x, y, x + side, y + side, outline=theme.now(theme.line))
            return
        self.draw_picture(path, x, y, side, side)
        if path == self.table.starred:
            box = x + 2, y + 2, x + theme.scaled(22), y + theme.scaled(22)
            self.canvas.create_rectangle(*box, fill=theme.now(theme.card), width=0)
            self.draw_text(x + theme.scaled(4), y + theme.scaled(2), STAR, theme.scaled(20), 14, theme.warning)
        self.draw_choice(number, x, y, side, side)

    def draw_headers(self) -> None:
        theme, canvas, table = self.app.theme, self.canvas, self.table
        left, top = self.margins()
        size, columns = self.cell_size()[0], len(table.columns)
        background = theme.now(theme.card)
        canvas.create_rectangle(0, 0, canvas.winfo_width(), top, fill=background, width=0)
        canvas.create_rectangle(0, 0, left, canvas.winfo_height(), fill=background, width=0)
        numbers = self._numbers_in_sight()
        for column in sorted({number % columns for number in numbers}):
            x, _ = self.corner_of(column)
            if x >= left:
                for line, text in enumerate(table.columns[column].split("\n")[:2]):
                    width = size - theme.scaled(GAP)
                    self.draw_text(x, theme.scaled(4 + 17 * line), text, width, 11, theme.muted, is_name=True)
        for row in sorted({number // columns for number in numbers}):
            _, y = self.corner_of(row * columns)
            y = min(max(y, top), y + size - theme.scaled(40))  # visible as long as the row is
            num_letters = max(1, size // theme.scaled(16) - 1) * (left // theme.scaled(8))
            title, _, below = table.rows[row].partition("\n")
            title = cut_text(visible_line(title), num_letters, len)
            canvas.create_text(
                theme.scaled(4), y, text=f"{title}\n{below}", anchor="nw", width=left - theme.scaled(10),
                fill=theme.now(theme.text), font=theme.plain_font(12),
            )  # fmt: skip
        canvas.create_rectangle(0, 0, left, top, fill=background, width=0)


def _load_both(paths: tuple[str, str]) -> tuple[Image.Image, Image.Image]:
    """Load two images. Raises ImageError."""
    first, second = (load_image(path, at_least=(COMPARED, COMPARED)) for path in paths)
    return first, second
