"""The ranks of the run on their devices: memory, utilization and state. Drawn on one Canvas."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING, NamedTuple

from modules.machine.memory_estimate import GIB
from modules.ui.cards.CardCanvas import CardCanvas
from modules.ui.models.run_text import ENDED_BADLY, LONG_WAIT, data_wait, percent
from modules.ui.theme import Pair, Theme
from modules.ui.widgets.fitting import cut_text

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.models.DeviceModel import DeviceModel
    from modules.ui.models.RunState import RankRow

ROW, HEADER = 24, 24
TITLES = ("#", "device", "memory, GiB", "util", "state")
WIDTHS = (20, 96, 74, 42, 84)  # unscaled pixels; the memory's column also takes what is left, for its bar
GAP, BAR_HEIGHT, MIN_BAR, MIN_DEVICE = 10, 8, 16, 50


class _Line(NamedTuple):
    """memory_share: of the device's memory, None if unknown."""

    rank: str
    device: str
    memory: str
    memory_share: float | None
    utilization: str
    state: str
    colour: Pair


class RankBars(CardCanvas):
    """The ranks of the app's run; GPUs of this machine with what the driver last reported."""

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, app)
        self._lines: tuple[_Line, ...] = ()

    def show(self, ranks: list[RankRow], devices: DeviceModel) -> None:
        self._lines = tuple(_line_of(row, devices) for row in ranks)
        self.redraw()

    def contents(self) -> tuple:
        return self._lines

    def draw(self) -> None:
        theme = self._app.theme
        font = theme.plain_font(12)
        widths = [theme.scaled(width) for width in WIDTHS]
        free = self.winfo_width() - sum(widths) - theme.scaled(GAP) * len(WIDTHS) - theme.scaled(12)
        figures_width = widths[2]
        widths[1] = max(theme.scaled(MIN_DEVICE), widths[1] + min(0, free))
        widths[2] += max(0, free)
        lefts = [theme.scaled(12)]
        for width in widths[:-1]:
            lefts.append(lefts[-1] + width + theme.scaled(GAP))

        def write(column: int, y: float, text: str, colour: Pair, right: int = 0) -> None:
            text = cut_text(text, widths[column] - right, lambda part: self.tk.call("font", "measure", font, part))
            self.create_text(lefts[column] + right, y, anchor="w", text=text, fill=theme.now(colour), font=font)

        if not self._lines:
            write(1, theme.scaled(HEADER / 2), "No ranks yet", Theme.muted)
        for column, title in enumerate(TITLES if self._lines else ()):
            write(column, theme.scaled(HEADER / 2), title, Theme.muted)
        for number, line in enumerate(self._lines):
            y = theme.scaled(HEADER + ROW * number + ROW / 2)
            write(0, y, line.rank, Theme.text)
            write(1, y, line.device, Theme.text)
            bar = widths[2] - figures_width
            if line.memory_share is not None and bar >= theme.scaled(MIN_BAR):
                self._draw_bar(lefts[2], y, bar - theme.scaled(6), line.memory_share)
                write(2, y, line.memory, Theme.text, right=bar)
            else:
                write(2, y, line.memory, Theme.text)
            write(3, y, line.utilization, Theme.text)
            write(4, y, line.state, line.colour)
        self._set_height(theme.scaled(HEADER + ROW * max(0, len(self._lines)) + 6))

    def _draw_bar(self, left: int, y: float, width: int, share: float) -> None:
        theme, half = self._app.theme, self._app.theme.scaled(BAR_HEIGHT) / 2
        self.create_rectangle(left, y - half, left + width, y + half, fill=theme.now(Theme.line), width=0)
        self.create_rectangle(
            left, y - half, left + max(2, round(width * share)), y + half, fill=theme.now(Theme.selected), width=0
        )


def _line_of(row: RankRow, devices: DeviceModel) -> _Line:
    """Of another machine's GPU only what its rank reports is known."""
    kind, _, index = row.device.partition(":")
    gpus = {gpu.index: number for number, gpu in enumerate(devices.gpus)}
    place = gpus.get(int(index)) if kind == "cuda" and index.isdecimal() else None
    gpu = None if place is None else devices.gpus[place]
    used = None if place is None else devices.usage_so_far[place]
    name = row.device or "-" if gpu is None else gpu.name.removeprefix("NVIDIA ").removeprefix("GeForce ")
    in_use = row.memory_bytes if used is None or used.memory_used_bytes is None else used.memory_used_bytes
    total = None if gpu is None else gpu.memory_bytes
    memory = "-" if in_use is None else f"{in_use / GIB:.1f}" + (f" / {total / GIB:.0f}" if total else "")
    share = min(1.0, in_use / total) if in_use is not None and total else None
    utilization = "-" if used is None or used.utilisation is None else f"{used.utilisation}%"
    return _Line(str(row.rank), name, memory, share, utilization, *_state_of(row))


def _state_of(row: RankRow) -> tuple[str, Pair]:
    if row.state in ENDED_BADLY:
        return row.state, Theme.error
    wait = data_wait(row)
    if row.state == "training" and wait is not None and wait >= LONG_WAIT:
        return f"waits {percent(wait)}", Theme.warning
    return (f"step {row.step:,}", Theme.success) if row.state == "training" else (row.state, Theme.muted)
