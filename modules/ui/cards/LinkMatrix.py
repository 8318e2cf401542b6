"""The links between all pairs of GPUs and their measured speeds, as a matrix on a Canvas."""

from __future__ import annotations

import tkinter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from modules.ui.cards.CardCanvas import CardCanvas
from modules.ui.cards.DeviceTable import LINK_WORDS
from modules.ui.models.DeviceModel import DeviceModel

if TYPE_CHECKING:
    from modules.machine.devices import Gpu
    from modules.ui.App import App

CELL_WIDTH, CELL_HEIGHT, HEAD_WIDTH, HEAD_HEIGHT, MARGIN = 76, 36, 56, 24, 10
MIN_CELL_WIDTH, UNIT_WIDTH = 40, 62
COLOURS = {"nvlink": "success", "pcie": "text", "none": "warning", "unknown": "muted", None: "muted"}


class LinkMatrix(CardCanvas):
    """Shows the links of `model`'s machine; empty and without height for fewer than two GPUs."""

    def __init__(self, parent: tkinter.Misc, app: App, model: DeviceModel):
        super().__init__(parent, app)
        self._model = model
        self._gpus: tuple[Gpu, ...] = ()
        self._speeds: Mapping[frozenset[int | str], float] = {}

    def show_machine(self) -> None:
        if self._model.gpus != self._gpus:  # for the same GPUs, keep the measured speeds
            self._gpus, self._speeds = self._model.gpus, {}
        self.redraw()

    def show_speeds(self, speeds: Mapping[frozenset[int | str], float]) -> None:
        """speeds: indexes of two GPUs -> GB/s; pairs of CPU ranks are not shown."""
        self._speeds = speeds if self._model.gpus else {}
        self.redraw()

    def contents(self) -> tuple:
        return self._model.machine, dict(self._speeds)

    def draw(self) -> None:
        theme, gpus = self._app.theme, self._model.gpus
        num = len(gpus) if len(gpus) > 1 else 0
        self._set_height(theme.scaled(HEAD_HEIGHT + CELL_HEIGHT * num + 4) if num else 1)
        room = (self.winfo_width() - theme.scaled(HEAD_WIDTH + 2 * MARGIN)) // max(num, 1)
        cell = max(theme.scaled(MIN_CELL_WIDTH), min(theme.scaled(CELL_WIDTH), room))
        left = theme.scaled(MARGIN + HEAD_WIDTH)
        for row, gpu in enumerate(gpus[:num]):
            y = theme.scaled(HEAD_HEIGHT + CELL_HEIGHT * (row + 0.5))
            self._write(theme.scaled(MARGIN), y, f"GPU {gpu.index}", theme.muted, anchor="w")
            self._write(left + cell * (row + 0.5), theme.scaled(HEAD_HEIGHT / 2), str(gpu.index), theme.muted)
            for column in range(num):
                self._draw_cell(row, column, left + cell * column, cell)

    def _draw_cell(self, row: int, column: int, x: int, width: int) -> None:
        theme = self._app.theme
        machine = self._model.machine
        assert machine is not None  # else there is no row
        link = machine.links[row][column]
        top = theme.scaled(HEAD_HEIGHT + CELL_HEIGHT * row)
        bottom = theme.scaled(HEAD_HEIGHT + CELL_HEIGHT * (row + 1))
        fill = theme.control if row == column else theme.card
        self.create_rectangle(x, top, x + width, bottom, fill=theme.now(fill), outline=theme.now(theme.line))
        if row == column:
            return
        speed = self._speeds.get(frozenset((row, column)))
        word, colour = LINK_WORDS[link], getattr(theme, COLOURS[link])
        middle = (top + bottom) / 2
        if speed is None:
            self._write(x + width / 2, middle, word, colour, size=12)
        else:
            self._write(x + width / 2, middle - theme.scaled(7), word, colour, size=11)
            unit = " GB/s" if width >= theme.scaled(UNIT_WIDTH) else ""
            self._write(x + width / 2, middle + theme.scaled(8), f"{speed:.1f}{unit}", theme.text, size=11)

    def _write(
        self,
        x: float,
        y: float,
        text: str,
        colour: tuple[str, str],
        size: int = 13,
        anchor: Literal["center", "w"] = "center",
    ):
        theme = self._app.theme
        self.create_text(x, y, anchor=anchor, text=text, fill=theme.now(colour), font=theme.plain_font(size))
