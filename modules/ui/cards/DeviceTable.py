"""The GPUs of this machine: which train, and their current use. Drawn on one Canvas; only the boxes are widgets."""

from __future__ import annotations

import tkinter
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.machine.devices import Gpu, GpuUsage
from modules.machine.memory_estimate import GIB
from modules.ui.cards.CardCanvas import CardCanvas
from modules.ui.models.DeviceModel import DeviceModel, worst_link
from modules.ui.theme import Theme
from modules.ui.widgets.fitting import cut_text

if TYPE_CHECKING:
    from modules.ui.App import App

ROW, HEADER, LINE = 28, 24, 20
BUSY_SHARE = 0.5  # of the memory in use, from which on a model may not fit
LINK_WORDS = {"nvlink": "NVLink", "pcie": "PCIe", "none": "none", "unknown": "?", None: "-"}

# (title, width); 0: as wide as its texts, -1: the remaining width
COLUMNS = (
    ("use", 36),
    ("#", 24),
    ("device", 0),
    ("memory", -1),
    ("", 0),
    ("in use by", 0),
    ("util", 0),
    ("temp", 0),
    ("link", 0),
)
GAP, BAR_MIN, BAR_HEIGHT, NAME_MAX, USER_MAX = 12, 40, 10, 190, 130


class DeviceTable(CardCanvas):
    """Shows `model`. chosen: called with the indexes of the ticked GPUs when the user changes them."""

    def __init__(self, parent: tkinter.Misc, app: App, model: DeviceModel, chosen: Callable[[set[int]], None]):
        super().__init__(parent, app)
        self._model, self._chosen = model, chosen
        self.boxes: list[ctk.CTkCheckBox] = []
        self._font = app.theme.plain_font()
        self._widths: dict[str, int] = {}  # of texts in the current font

    def show_machine(self) -> Generator[None, None, None]:
        """Create the boxes for a new list of GPUs, one per step."""
        while len(self.boxes) > len(self._model.gpus):
            self.boxes.pop().destroy()
        while len(self.boxes) < len(self._model.gpus):
            look = {"text": "", "width": 24, "checkbox_width": 18, "checkbox_height": 18}
            self.boxes.append(ctk.CTkCheckBox(self, **look, bg_color=Theme.card, command=self._tell))
            yield
        self.redraw()

    def show_choice(self, ticked: set[int]) -> None:
        for gpu, box in zip(self._model.gpus, self.boxes, strict=False):
            if bool(box.get()) != (gpu.index in ticked):
                (box.select if gpu.index in ticked else box.deselect)()
        self.redraw()

    def show_usage(self) -> None:
        self.redraw()

    def contents(self) -> tuple | None:
        model = self._model
        if len(self.boxes) != len(model.gpus):
            return None
        return model.machine, tuple(model.usage), frozenset(self._ticked())

    def draw(self) -> None:
        machine = self._model.machine
        if machine is None:
            self._write_lines(["Asking the driver…"])
        elif not self._model.gpus:
            self._write_lines(["No GPU found: CPU (gloo) ranks.", f"Reason: {machine.no_gpu_reason}."])
        else:
            self._draw_table()

    def _tell(self) -> None:
        self._chosen(self._ticked())

    def _ticked(self) -> set[int]:
        return {gpu.index for gpu, box in zip(self._model.gpus, self.boxes, strict=False) if box.get()}

    def _write_lines(self, lines: Sequence[str]) -> None:
        theme, y = self._app.theme, 0
        width = max(self.winfo_width() - theme.scaled(20), 100)
        for number, line in enumerate(lines):
            colour = theme.muted if number else theme.text
            place = (theme.scaled(10), y + theme.scaled(4))
            item = self.create_text(
                *place, anchor="nw", text=line, width=width, fill=theme.now(colour), font=theme.plain_font()
            )
            y = self.bbox(item)[3]
        self._set_height(y + theme.scaled(6))

    def _draw_table(self) -> None:
        theme, gpus = self._app.theme, self._model.gpus
        if self._font != (font := theme.plain_font()):
            self._font = font
            self._widths.clear()
        usage = self._model.usage_so_far
        ticked = self._ticked()
        rows = [self._texts(gpu, used, ticked) for gpu, used in zip(gpus, usage, strict=True)]
        lefts, widths = self._columns(rows)
        for (title, _), left in zip(COLUMNS, lefts, strict=True):
            self._write(left, HEADER / 2, title, theme.muted)
        for number, (gpu, used, row) in enumerate(zip(gpus, usage, rows, strict=True)):
            y = HEADER + ROW * number + ROW / 2
            self.create_window(lefts[0], theme.scaled(y), window=self.boxes[number], anchor="w")
            for column, text in row.items():
                is_heavy = column == 5 and used.memory_used_bytes and _share(gpu, used) >= BUSY_SHARE
                colour = theme.warning if is_heavy or (column == 8 and text == "none") else theme.text
                self._write(lefts[column], y, cut_text(text, widths[column], self._measure), colour)
            self._draw_bar(lefts[3], y, widths[3], gpu, used)
        self._set_height(theme.scaled(HEADER + ROW * len(gpus) + 4))

    def _texts(self, gpu: Gpu, used: GpuUsage, ticked: set[int]) -> dict[int, str]:
        """Column -> text. Figures that the driver does not report are shown as a dash."""
        machine = self._model.machine
        assert machine is not None  # else there is no GPU
        total = "?" if gpu.memory_bytes is None else f"{gpu.memory_bytes / GIB:.1f}"
        now = "?" if used.memory_used_bytes is None else f"{used.memory_used_bytes / GIB:.1f}"
        others = f" +{len(used.processes) - 1}" if len(used.processes) > 1 else ""
        by = f"{used.processes[0].name or 'process'} {used.processes[0].pid}{others}" if used.processes else "-"
        return {
            1: str(gpu.index),
            2: gpu.name.removeprefix("NVIDIA ").removeprefix("GeForce "),
            4: f"{now}/{total} GiB",
            5: by,
            6: "-" if used.utilisation is None else f"{used.utilisation}%",
            7: "-" if used.temperature_celsius is None else f"{used.temperature_celsius} °C",
            8: LINK_WORDS[worst_link(machine.links, gpu.index, ticked)],
        }

    def _columns(self, rows: Sequence[dict[int, str]]) -> tuple[list[int], list[int]]:
        """The left edges and widths in screen pixels; names and programs are cut in a narrow window."""
        scaled = self._app.theme.scaled
        widths = []
        for column, (title, width) in enumerate(COLUMNS):
            texts = [title, *(row[column] for row in rows if column in row)]
            widths.append(scaled(width) if width > 0 else max(map(self._measure, texts)) if width == 0 else 0)
        widths[2], widths[5] = min(widths[2], scaled(NAME_MAX)), min(widths[5], scaled(USER_MAX))
        gaps = scaled(10) + scaled(GAP) * (len(widths) - 1) + scaled(6)
        rest = self.winfo_width() - sum(widths) - gaps
        for column, least in ((5, 60), (2, 80)):
            if rest < scaled(BAR_MIN):
                taken = min(scaled(BAR_MIN) - rest, max(0, widths[column] - scaled(least)))
                widths[column] -= taken
                rest += taken
        widths[3] = max(0, rest)
        lefts = [scaled(10)]
        for width in widths[:-1]:
            lefts.append(lefts[-1] + width + scaled(GAP))
        return lefts, widths

    def _draw_bar(self, left: int, y: float, width: int, gpu: Gpu, used: GpuUsage) -> None:
        theme = self._app.theme
        if width < theme.scaled(16):
            return
        top, bottom = theme.scaled(y - BAR_HEIGHT / 2), theme.scaled(y + BAR_HEIGHT / 2)
        self.create_rectangle(left, top, left + width, bottom, fill=theme.now(theme.line), width=0)
        if (share := _share(gpu, used)) > 0:
            colour = theme.warning if share >= BUSY_SHARE else theme.selected
            right = left + max(2, round(width * share))
            self.create_rectangle(left, top, right, bottom, fill=theme.now(colour), width=0)

    def _write(self, left: int, y: float, text: str, colour: tuple[str, str]) -> None:
        theme = self._app.theme
        self.create_text(left, theme.scaled(y), anchor="w", text=text, fill=theme.now(colour), font=theme.plain_font())

    def _measure(self, text: str) -> int:
        """The width of a text, cached because measuring it takes half a millisecond."""
        if text not in self._widths:
            self._widths[text] = int(self.tk.call("font", "measure", self._font, text))
        return self._widths[text]


def _share(gpu: Gpu, used: GpuUsage) -> float:
    return min(1.0, (used.memory_used_bytes or 0) / gpu.memory_bytes) if gpu.memory_bytes else 0.0
