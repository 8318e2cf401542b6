"""A chart of a run's loss: of every step, smoothed, and of the validation, with the learning rate.

Drawn on a Canvas whose items are created once and then only get new coordinates: 2,000 points take a few ms, while a
plotting library takes 30 to 45 ms, a second for the first drawing, and 50 MiB.
"""

from __future__ import annotations

import math
import re
import tkinter as tk
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import customtkinter as ctk

from modules.session.RunningMean import SMOOTHING
from modules.ui.widgets.fitting import lay_in_rows

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.models.LossHistory import LossHistory
    from modules.ui.theme import Pair

MAX_POINTS = 1000  # of a line: more than one per pixel would not be visible
NUM_TICKS = 8  # maximum on each axis
REDRAW_SECONDS = 0.25
SMALLEST_LOG = 1e-8
RANGES = {"All steps": None, "Last 10,000 steps": 10_000, "Last 1,000 steps": 1_000, "Last 100 steps": 100}
DASH = 8  # length of the dash that marks a single step, in unscaled pixels
SPREAD = 0.05  # of the height left free above and below
RATE_DASH = (4, 4)  # pixels
MAX_AVERAGED = 1000  # steps over which the slider can average

# unscaled pixels around the plot, for the axis labels
LEFT, TOP, RIGHT, BOTTOM = 64, 10, 60, 26
RATE_LABELS = (0.0, 0.5, 1.0)  # of the highest learning rate


class Plot(NamedTuple):
    """The coordinate system of the plot: its edges in pixels, and the steps and (log) losses there."""

    left: int
    top: int
    right: int
    bottom: int
    first: float
    last: float
    low: float
    high: float
    is_log: bool

    def x(self, step: float) -> float:
        return self.left + (step - self.first) / (self.last - self.first) * (self.right - self.left)

    def y(self, loss: float) -> float:
        value = math.log10(max(loss, SMALLEST_LOG)) if self.is_log else loss
        return self.bottom - (value - self.low) / (self.high - self.low) * (self.bottom - self.top)

    def rate_y(self, share: float) -> float:
        """share: of the highest learning rate. Its axis, on the right, begins at 0."""
        return self.bottom - share * (1 - SPREAD) * (self.bottom - self.top)

    def step(self, x: float) -> float:
        return self.first + (x - self.left) / (self.right - self.left) * (self.last - self.first)


class LossChart(ctk.CTkFrame):
    """The chart of the app's run, redrawn for new steps. Hovering, or Left and Right, shows a step's loss."""

    def __init__(self, parent: tk.Misc, app: App):
        super().__init__(parent)
        self.app = app
        self.is_log = tk.BooleanVar(self, False)
        self.shows_raw = tk.BooleanVar(self, True)
        self.smoothing = SMOOTHING
        self.plot: Plot | None = None
        self._drawn: tuple | None = None  # what the last drawing depended on
        self._hovered: int | None = None
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(1, weight=1)
        self._build_bar()
        self._build_canvas()
        self._stop_listening = app.theme.on_change(self._restyle)
        self._stop_redrawing = app.every(REDRAW_SECONDS, self._redraw_if_changed)
        self._restyle()

    def redraw(self) -> None:
        """Update the chart from the history."""
        history = self.app.run.history
        self._drawn = self._state_of(history)
        first, last = self._range(history)
        raw = history.points(self._num_points(), first, last) if self.shows_raw.get() else []
        smooth = history.smooth_points(self._num_points(), first, last, self.smoothing)
        measured = ((step, loss) for step, loss, _ in history.validation if loss is not None)
        validation = [(step, loss) for step, loss in measured if first <= step <= last]
        self.plot = self._place(first, last, raw, smooth, validation)
        rates = history.rate_points(self._num_points(), first, last)
        highest = max((rate for _, rate in rates), default=0.0)
        self._draw_line(self._rate, _rate_line(self.plot, rates, highest))
        self._label_rates(self.plot, highest)
        self._draw_line(self._raw, _zigzag(self.plot, raw))
        self._draw_line(self._smooth, _line(self.plot, smooth))
        self._draw_validation(self.plot, validation)
        self._draw_axes(self.plot, history)
        self._draw_hover()

    def smooth_over(self, num_steps: float) -> None:
        """Smooth the loss over about this many steps."""
        self.smoothing = 1 - 1 / max(1.0, num_steps)
        self._show_smoothing()
        self.redraw()

    # --- drawing -----------------------------------------------------------------------------------------------------

    def _redraw_if_changed(self) -> None:
        if self.canvas.winfo_viewable() and self._state_of(self.app.run.history) != self._drawn:
            self.redraw()

    def _state_of(self, history: LossHistory) -> tuple:
        validation = history.validation
        return id(history), len(history), history.last_step, len(validation), validation[-1:]

    def _range(self, history: LossHistory) -> tuple[int, int]:
        """The first and the last step to show."""
        first, last = history.first_step, history.last_step
        num_steps = RANGES[self._range_menu.get()]
        return (first if num_steps is None else max(first, last - num_steps + 1)), last

    def _num_points(self) -> int:
        return max(2, min(MAX_POINTS, self.canvas.winfo_width()))

    def _place(self, first: int, last: int, raw, smooth, validation) -> Plot:
        """The coordinate system in which everything shown fits."""
        scaled, is_log = self.app.theme.scaled, self.is_log.get()
        losses = [loss for _, loss in (*smooth, *validation)]
        losses += [loss for _, low, high, _ in raw for loss in (low, high)]
        if is_log:
            losses = [math.log10(max(loss, SMALLEST_LOG)) for loss in losses]
        low, high = (min(losses), max(losses)) if losses else (0.0, 1.0)
        spread = (high - low) * SPREAD or abs(high) * SPREAD or 1.0
        left, top = scaled(LEFT), scaled(TOP)
        right = max(left + 1, self.canvas.winfo_width() - scaled(RIGHT))
        bottom = max(top + 1, self.canvas.winfo_height() - scaled(BOTTOM))
        return Plot(left, top, right, bottom, first, max(last, first + 1), low - spread, high + spread, is_log)

    def _draw_line(self, item: int, coordinates: Sequence[float]) -> None:
        if len(coordinates) == 2:  # Tk can't draw a line of one point: draw a dash
            (x, y), half = coordinates, self.app.theme.scaled(DASH) // 2
            coordinates = (x - half, y, x + half, y)
        shown = bool(coordinates)
        if shown:
            self.canvas.coords(item, *coordinates)
        self.canvas.itemconfigure(item, state="normal" if shown else "hidden")

    def _draw_validation(self, plot: Plot, points: Sequence[tuple[int, float]]) -> None:
        self.canvas.delete("validation")
        radius, colour = max(2, self.app.theme.scaled(3)), self.app.theme.now(self.app.theme.warning)
        every = -(-len(points) // MAX_POINTS) or 1
        for step, loss in points[::every]:
            x, y = plot.x(step), plot.y(loss)
            box = (x - radius, y - radius, x + radius, y + radius)
            self.canvas.create_oval(*box, fill=colour, width=0, tags="validation")

    def _draw_axes(self, plot: Plot, history: LossHistory) -> None:
        canvas, gap = self.canvas, self.app.theme.scaled(6)
        losses = log_ticks(plot.low, plot.high) if plot.is_log else ticks(plot.low, plot.high)
        steps = [step for step in ticks(plot.first, plot.last) if step.is_integer()]
        for items, places in ((self._grid, losses), (self._steps, steps)):
            for number, (line, text) in enumerate(items):
                state = "normal" if number < len(places) and len(history) else "hidden"
                canvas.itemconfigure(line, state=state)
                canvas.itemconfigure(text, state=state)
        for loss, (line, text) in zip(losses, self._grid, strict=False):
            y = plot.y(loss)
            canvas.coords(line, plot.left, y, plot.right, y)
            canvas.coords(text, plot.left - gap, y)
            canvas.itemconfigure(text, text=f"{loss:.4g}")
        for step, (line, text) in zip(steps, self._steps, strict=False):
            x = plot.x(step)
            canvas.coords(line, x, plot.bottom, x, plot.bottom + gap // 2)
            canvas.coords(text, x, plot.bottom + gap)
            canvas.itemconfigure(text, text=f"{step:,.0f}")
        canvas.coords(self._hint, (plot.left + plot.right) / 2, (plot.top + plot.bottom) / 2)
        canvas.itemconfigure(self._hint, text="" if len(history) else "No step yet")

    def _label_rates(self, plot: Plot, highest: float) -> None:
        gap = self.app.theme.scaled(6)
        for share, text in zip(RATE_LABELS, self._rates, strict=True):
            self.canvas.coords(text, plot.right + gap, plot.rate_y(share))
            self.canvas.itemconfigure(
                text, text=rate_text(share * highest), state="normal" if highest > 0 else "hidden"
            )

    # --- hovering ----------------------------------------------------------------------------------------------------

    def _on_motion(self, event: tk.Event) -> None:
        plot = self.plot
        if plot is not None and plot.left <= event.x <= plot.right and plot.top <= event.y <= plot.bottom:
            self._hover(round(plot.step(event.x)))
        else:
            self._hover(None)

    def _on_key(self, event: tk.Event) -> str:
        if self.plot is not None:
            pixel = max(1, round((self.plot.last - self.plot.first) / (self.plot.right - self.plot.left)))
            start = self.plot.last if self._hovered is None else self._hovered
            step = start + pixel * (-1 if event.keysym == "Left" else 1)
            self._hover(int(min(max(step, self.plot.first), self.plot.last)))
        return "break"

    def _hover(self, step: int | None) -> None:
        self._hovered = step
        self._draw_hover()

    def _draw_hover(self) -> None:
        """Draw a line at the step and its values."""
        plot, hovered = self.plot, self._hovered
        text = None if hovered is None or plot is None else self.describe(hovered)
        for item in (self._hover_line, self._hover_box, self._hover_text):
            self.canvas.itemconfigure(item, state="hidden" if text is None else "normal")
        if text is None or plot is None or hovered is None:
            return
        gap = self.app.theme.scaled(8)
        x = min(max(plot.x(hovered), plot.left), plot.right)
        self.canvas.coords(self._hover_line, x, plot.top, x, plot.bottom)
        to_left = x > (plot.left + plot.right) / 2
        self.canvas.itemconfigure(self._hover_text, text=text, anchor="ne" if to_left else "nw")
        self.canvas.coords(self._hover_text, x - 2 * gap if to_left else x + 2 * gap, plot.top + gap)
        left, top, right, bottom = self.canvas.bbox(self._hover_text)
        self.canvas.coords(self._hover_box, left - gap // 2, top - gap // 2, right + gap // 2, bottom + gap // 2)

    def describe(self, step: int) -> str | None:
        """The values of the step nearest to `step`, in words; None if there is none."""
        history = self.app.run.history
        found = history.at(step, self.smoothing)
        if found is None:
            return None
        step, loss, smooth, rate = found
        lines = [f"step {step:,}", "loss   not finite: skipped" if loss is None else f"loss   {loss:.5g}"]
        if smooth is not None:
            lines.append(f"smoothed   {smooth:.5g}")
        if rate is not None:
            lines.append(f"learning rate   {rate:.3g}")
        validation = [point for point in history.validation if point[1] is not None]
        near = bisect_left([point[0] for point in validation], step + 1) - 1
        if near >= 0:
            lines.append(f"validation   {validation[near][1]:.5g} at step {validation[near][0]:,}")
        return "\n".join(lines)

    # --- widgets -----------------------------------------------------------------------------------------------------

    def _build_bar(self) -> None:
        theme = self.app.theme
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=0, column=0, sticky="ew", padx=12, pady=(8, 2))
        made: list[ctk.CTkBaseClass] = [
            ctk.CTkLabel(bar, text="Loss", font=theme.font(15, "bold"), width=52, anchor="w")
        ]
        keys = ("each step", theme.border), ("smoothed", theme.accent), ("validation", theme.warning)
        made += [self._make_key(bar, text, colour) for text, colour in (*keys, ("learning rate", theme.success))]
        made.append(self._make_slider(bar))
        for text, variable in (("Each step", self.shows_raw), ("Log scale", self.is_log)):
            made.append(ctk.CTkSwitch(bar, text=text, variable=variable, command=self.redraw))
        self._range_menu = ctk.CTkOptionMenu(
            bar, values=list(RANGES), width=150, height=26, command=lambda _: self.redraw()
        )
        self._range_menu.set(next(iter(RANGES)))
        lay_in_rows(bar, [*made, self._range_menu], theme, gap=10)

    def _make_key(self, bar: ctk.CTkFrame, text: str, colour: Pair) -> ctk.CTkFrame:
        key = ctk.CTkFrame(bar, fg_color="transparent")
        ctk.CTkFrame(key, width=14, height=4, fg_color=colour, corner_radius=2).pack(side="left", padx=(0, 4))
        ctk.CTkLabel(key, text=text, text_color=self.app.theme.muted, font=self.app.theme.font(12)).pack(side="left")
        return key

    def _make_slider(self, bar: ctk.CTkFrame) -> ctk.CTkFrame:
        """A slider for the number of averaged steps, on a logarithmic scale."""
        pair = ctk.CTkFrame(bar, fg_color="transparent")
        self.slider = ctk.CTkSlider(
            pair, width=90, from_=0, to=math.log10(MAX_AVERAGED), command=lambda place: self.smooth_over(10**place)
        )
        self.slider.pack(side="left")
        self._averaged = ctk.CTkLabel(pair, text="", width=106, anchor="w", font=self.app.theme.font(12))
        self._averaged.pack(side="left", padx=(4, 0))
        self._show_smoothing()
        return pair

    def _show_smoothing(self) -> None:
        num_steps = 1 / (1 - self.smoothing)
        self.slider.set(math.log10(num_steps))
        text = "not smoothed" if num_steps < 1.5 else f"over {num_steps:,.0f} steps"
        self._averaged.configure(text=text, text_color=self.app.theme.muted)

    def _build_canvas(self) -> None:
        self.canvas = canvas = tk.Canvas(self, width=200, height=120, bd=0, highlightthickness=2, takefocus=True)
        canvas.grid(row=1, column=0, sticky="nsew", padx=6, pady=(0, 6))
        self._grid, self._steps = (
            [(canvas.create_line(0, 0, 0, 0), canvas.create_text(0, 0, anchor=anchor)) for _ in range(NUM_TICKS)]
            for anchor in ("e", "n")
        )
        self._rates = [canvas.create_text(0, 0, anchor="w", state="hidden") for _ in RATE_LABELS]
        self._rate = canvas.create_line(0, 0, 0, 0, state="hidden", dash=RATE_DASH)
        self._raw = canvas.create_line(0, 0, 0, 0, state="hidden")
        self._smooth = canvas.create_line(0, 0, 0, 0, state="hidden")
        self._hint = canvas.create_text(0, 0)
        self._hover_line = canvas.create_line(0, 0, 0, 0, state="hidden")
        self._hover_box = canvas.create_rectangle(0, 0, 0, 0, state="hidden")
        self._hover_text = canvas.create_text(0, 0, state="hidden")
        canvas.bind("<Configure>", lambda event: self.redraw())
        canvas.bind("<Motion>", self._on_motion)
        canvas.bind("<Leave>", lambda event: self._hover(None))
        canvas.bind("<Left>", self._on_key)
        canvas.bind("<Right>", self._on_key)

    def _restyle(self) -> None:
        theme, canvas = self.app.theme, self.canvas
        font, muted = theme.plain_font(11), theme.now(theme.muted)
        canvas.configure(
            bg=theme.now(theme.card), highlightcolor=theme.now(theme.focus), highlightbackground=theme.now(theme.card)
        )
        for line, text in (*self._grid, *self._steps):
            canvas.itemconfigure(line, fill=theme.now(theme.line))
            canvas.itemconfigure(text, fill=muted, font=font)
        canvas.itemconfigure(self._rate, fill=theme.now(theme.success))
        for text in self._rates:
            canvas.itemconfigure(text, fill=theme.now(theme.success), font=font)
        canvas.itemconfigure(self._raw, fill=theme.now(theme.border), width=1)
        canvas.itemconfigure(self._smooth, fill=theme.now(theme.accent), width=max(2, theme.scaled(2)))
        canvas.itemconfigure(self._hint, fill=muted, font=theme.plain_font(13))
        canvas.itemconfigure(self._hover_line, fill=muted)
        canvas.itemconfigure(self._hover_box, fill=theme.now(theme.page), outline=theme.now(theme.border))
        canvas.itemconfigure(self._hover_text, fill=theme.now(theme.text), font=theme.plain_font(12))
        self.redraw()

    def destroy(self) -> None:
        self._stop_listening()
        self._stop_redrawing()
        super().destroy()


def _zigzag(plot: Plot, points: Sequence[tuple[int, float, float, float]]) -> list[float]:
    """A zigzag through the lowest and highest loss of each point, so that no outlier is lost."""
    coordinates: list[float] = []
    for step, low, high, _ in points:
        x = plot.x(step)
        coordinates += (x, plot.y(low)) if low == high else (x, plot.y(low), x, plot.y(high))
    return coordinates


def ticks(low: float, high: float) -> list[float]:
    """At most NUM_TICKS round numbers between `low` and `high`: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / (NUM_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    size = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [number * size for number in range(math.ceil(low / size), math.floor(high / size) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """At most NUM_TICKS round losses whose logarithm (base 10) is between `low` and `high`."""
    for factors in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        powers = range(math.floor(low), math.ceil(high) + 1)
        ticks = [factor * 10.0**power for power in powers for factor in factors]
        ticks = [tick for tick in ticks if low <= math.log10(tick) <= high]
        if len(ticks) <= NUM_TICKS:
            break
    return ticks[:: -(-len(ticks) // NUM_TICKS) or 1]


def rate_text(rate: float) -> str:
    """A learning rate as people write it: 0, 0.003, 1.5e-4."""
    return f"{rate:.3g}" if rate >= 1e-3 or not rate else re.sub(r"(\.?0+)?e-0*", "e-", f"{rate:.2e}")


def _rate_line(plot: Plot, points: Sequence[tuple[int, float]], highest: float) -> list[float]:
    places = [(plot.x(step), plot.rate_y(rate / (highest or 1.0))) for step, rate in points]
    return [coordinate for place in places for coordinate in place]


def _line(plot: Plot, points: Sequence[tuple[int, float]]) -> list[float]:
    return [coordinate for step, loss in points for coordinate in (plot.x(step), plot.y(loss))]
