"""The loss of several runs in one chart, over steps, images or time, smoothed alike."""

from __future__ import annotations

import math
import tkinter as tk
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import customtkinter as ctk

from modules.config.visible_text import visible_line
from modules.runs.comparison import line_of
from modules.runs.Curve import Axis, Point
from modules.ui.widgets.fitting import cut_text, lay_in_rows
from modules.ui.widgets.LossChart import SMALLEST_LOG, log_ticks, ticks

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.theme import Pair

AXES: dict[str, Axis] = {"Steps": "step", "Images": "images", "Seconds": "seconds"}
COLOURS: tuple[Pair, ...] = (
    ("#1a5a96", "#86bdf2"), ("#b3261e", "#ff9b92"), ("#17653a", "#70d197"), ("#7d5300", "#f0b849"),
    ("#7b3fa0", "#cfa3ee"), ("#0a6b72", "#63cdd5"), ("#9c2c6b", "#f29ac8"), ("#525962", "#bcc1c8"),
)  # fmt: skip
MAX_AVERAGED = 1000  # steps over which the slider can average
LEFT, TOP, RIGHT, BOTTOM = 64, 10, 16, 40  # unscaled pixels around the plot
SPREAD = 0.05  # of the height left free above and below


@dataclass(frozen=True)
class NamedCurve:
    name: str
    points: Sequence[Point]


class CurvesChart(ctk.CTkFrame):
    """Hovering shows the losses of all runs there."""

    def __init__(self, parent: tk.Misc, app: App):
        super().__init__(parent)
        self.app = app
        self.axis: Axis = "step"
        self.num_steps = 50.0  # that are averaged
        self.is_log = tk.BooleanVar(self, False)
        self._curves: Sequence[NamedCurve] = ()
        self._lines: list[list[tuple[float, float]]] = []
        self._bounds = (0.0, 1.0, 0.0, 1.0)  # last place on the axis; lowest and highest (log) loss
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(1, weight=1)
        self._build_bar()
        self.canvas = tk.Canvas(self, width=200, height=120, bd=0, highlightthickness=0)
        self.canvas.grid(row=1, column=0, sticky="nsew", padx=6, pady=(0, 6))
        self.canvas.bind("<Configure>", lambda event: self.redraw())
        self.canvas.bind("<Motion>", lambda event: self._hover(event.x, event.y))
        self.canvas.bind("<Leave>", lambda event: self.canvas.delete("hover"))
        self._stop_listening = app.theme.on_change(self.redraw)

    def show(self, curves: Sequence[NamedCurve]) -> None:
        self._curves = curves
        self.redraw()

    def smooth_over(self, num_steps: float) -> None:
        """Average over so many steps; 1: do not smooth."""
        self.num_steps = num_steps
        self._averaged.configure(text="not smoothed" if num_steps < 1.5 else f"over {num_steps:,.0f} steps")
        self.redraw()

    def redraw(self) -> None:
        theme, canvas = self.app.theme, self.canvas
        canvas.configure(bg=theme.now(theme.card))
        canvas.delete("all")
        self._lines = [line_of(curve.points, self.axis, self.num_steps) for curve in self._curves]
        places = [self._value(y) for line in self._lines for _, y in line]
        middle = canvas.winfo_width() / 2, canvas.winfo_height() / 2
        if not places:
            canvas.create_text(*middle, text="No step yet", fill=theme.now(theme.muted), font=theme.plain_font(13))
            return
        low, high = min(places), max(places)
        spread = SPREAD * (high - low) or 0.5
        last = max(line[-1][0] for line in self._lines if line)
        self._bounds = last, low - spread, high + spread, 0.0
        self._draw_grid()
        for number, line in enumerate(self._lines):
            coordinates = [one for x, y in line for one in (self._x(x), self._y(y))]
            colour = theme.now(COLOURS[number % len(COLOURS)])
            if len(line) > 1:
                canvas.create_line(*coordinates, fill=colour, width=max(2, theme.scaled(2)))
        self._draw_names()

    # --- drawing -----------------------------------------------------------------------------------------------------

    def _value(self, loss: float) -> float:
        return math.log10(max(loss, SMALLEST_LOG)) if self.is_log.get() else loss

    def _edges(self) -> tuple[int, int, int, int]:
        """The left, upper, right and lower edge of the plot."""
        scaled = self.app.theme.scaled
        right, bottom = self.canvas.winfo_width() - scaled(RIGHT), self.canvas.winfo_height() - scaled(BOTTOM)
        return scaled(LEFT), scaled(TOP), max(right, scaled(LEFT) + 1), max(bottom, scaled(TOP) + 1)

    def _x(self, place: float) -> float:
        left, _, right, _ = self._edges()
        return left + place / (self._bounds[0] or 1.0) * (right - left)

    def _y(self, loss: float) -> float:
        _, top, _, bottom = self._edges()
        _, low, high, _ = self._bounds
        return bottom - (self._value(loss) - low) / (high - low) * (bottom - top)

    def _draw_grid(self) -> None:
        theme, canvas = self.app.theme, self.canvas
        left, top, right, bottom = self._edges()
        last, low, high, _ = self._bounds
        font, muted, line = theme.plain_font(11), theme.now(theme.muted), theme.now(theme.line)
        for loss in log_ticks(low, high) if self.is_log.get() else ticks(low, high):
            y = self._y(loss)
            canvas.create_line(left, y, right, y, fill=line)
            canvas.create_text(left - theme.scaled(6), y, text=f"{loss:.4g}", anchor="e", fill=muted, font=font)
        for place in ticks(0.0, last or 1.0):
            x = self._x(place)
            canvas.create_line(x, top, x, bottom, fill=line)
            canvas.create_text(x, bottom + theme.scaled(4), text=f"{place:,.0f}", anchor="n", fill=muted, font=font)
        name = next(name for name, axis in AXES.items() if axis == self.axis).lower()
        canvas.create_text(right, bottom + theme.scaled(20), text=name, anchor="ne", fill=muted, font=font)

    def _draw_names(self) -> None:
        """Name the runs in their colours, in the upper right corner, where curves seldom are."""
        theme, canvas = self.app.theme, self.canvas
        _, top, right, _ = self._edges()
        y = top + theme.scaled(6)
        for number, curve in enumerate(self._curves):
            name = cut_text(visible_line(curve.name), 40, len)
            colour, font = theme.now(COLOURS[number % len(COLOURS)]), theme.plain_font(12, "bold")
            item = canvas.create_text(right - theme.scaled(8), y, text=name, anchor="ne", fill=colour, font=font)
            plate = canvas.create_rectangle(*canvas.bbox(item), fill=theme.now(theme.card), width=0)
            canvas.tag_lower(plate, item)
            y += theme.scaled(18)

    def _hover(self, x: int, y: int) -> None:
        theme, canvas = self.app.theme, self.canvas
        canvas.delete("hover")
        left, top, right, bottom = self._edges()
        if not (self._lines and left <= x <= right and top <= y <= bottom):
            return
        place = (x - left) / (right - left) * self._bounds[0]
        rows = [f"{next(name for name, axis in AXES.items() if axis == self.axis)[:-1].lower()} {place:,.0f}"]
        for curve, line in zip(self._curves, self._lines, strict=True):
            loss = next((loss for at, loss in line if at >= place), None)
            rows.append(f"{cut_text(visible_line(curve.name), 30, len)}   {'—' if loss is None else f'{loss:.5g}'}")
        canvas.create_line(x, top, x, bottom, fill=theme.now(theme.muted), tags="hover")
        is_right = x > (left + right) / 2
        at = x - 12 if is_right else x + 12
        anchor: Literal["ne", "nw"] = "ne" if is_right else "nw"
        font, fill = theme.plain_font(12), theme.now(theme.text)
        item = canvas.create_text(at, top + 8, text="\n".join(rows), anchor=anchor, fill=fill, font=font, tags="hover")
        box = canvas.bbox(item)
        plate = canvas.create_rectangle(
            box[0] - 4, box[1] - 4, box[2] + 4, box[3] + 4, fill=theme.now(theme.page),
            outline=theme.now(theme.border), tags="hover",
        )  # fmt: skip
        canvas.tag_lower(plate, item)

    # --- widgets -----------------------------------------------------------------------------------------------------

    def _build_bar(self) -> None:
        font = self.app.theme.font()
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=0, column=0, sticky="ew", padx=12, pady=(8, 2))
        axes = ctk.CTkSegmentedButton(bar, values=list(AXES), font=font, command=self._use_axis)
        axes.set("Steps")
        pair = ctk.CTkFrame(bar, fg_color="transparent")
        slider = ctk.CTkSlider(
            pair, width=110, from_=0, to=math.log10(MAX_AVERAGED), command=lambda place: self.smooth_over(10**place)
        )
        slider.set(math.log10(self.num_steps))
        slider.pack(side="left")
        self._averaged = ctk.CTkLabel(
            pair, text="over 50 steps", width=110, anchor="w", text_color=self.app.theme.muted
        )
        self._averaged.pack(side="left", padx=(6, 0))
        log = ctk.CTkSwitch(bar, text="Log scale", variable=self.is_log, font=font, command=self.redraw)
        lay_in_rows(bar, [axes, pair, log], self.app.theme, gap=14)

    def _use_axis(self, name: str) -> None:
        self.axis = AXES[name]
        self.redraw()

    def destroy(self) -> None:
        self._stop_listening()
        super().destroy()
