"""A grid of thumbnails, in which 5,000 images scroll as smoothly as 50."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from modules.ui.widgets.PictureCanvas import PictureCanvas

if TYPE_CHECKING:
    import tkinter as tk

    from modules.ui.App import App

GAP = 8


class Thumbnails(PictureCanvas):
    """A grid of images with as many columns as fit.

    side: of a thumbnail, in unscaled pixels. with_names: whether to show the file names.
    """

    def __init__(
        self,
        parent: tk.Misc,
        app: App,
        side: int = 112,
        with_names: bool = True,
        on_choose: Callable[[int], None] | None = None,
        on_open: Callable[[int], None] | None = None,
    ):
        self.paths: Sequence[str] = ()
        self._side = side
        self._with_names = with_names
        super().__init__(parent, app, on_choose, on_open)

    def show(self, paths: Sequence[str]) -> None:
        """Show these images from the start, unless they are already shown."""
        if list(paths) == list(self.paths):
            return
        self.paths = paths
        self.chosen = None
        self._offset = [0, 0]
        self.show_count(len(paths))

    @property
    def chosen_path(self) -> str | None:
        return None if self.chosen is None else self.paths[self.chosen]

    def cell_size(self) -> tuple[int, int]:
        side, gap = self.app.theme.scaled(self._side), self.app.theme.scaled(GAP)
        return side + gap, side + gap + (self.app.theme.scaled(18) if self._with_names else 0)

    def draw_cell(self, number: int, x: int, y: int) -> None:
        side, half_gap = self.app.theme.scaled(self._side), self.app.theme.scaled(GAP) // 2
        left, top = x + half_gap, y + half_gap
        self.draw_picture(self.paths[number], left, top, side, side)
        self.draw_choice(number, left - 1, top - 1, side + 1, side + 1)
        if self._with_names:
            name = os.path.basename(self.paths[number])
            self.draw_text(left, top + side + 1, name, side, size=11, colour=self.app.theme.muted)
