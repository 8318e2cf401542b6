"""What is measured inside a window: python -m scripts.benchmarks.ui_window FUNCTION STATE_DIR [ARGUMENTS]

Prints one JSON object. It imports little by itself: the time to the first picture is that of the window.
"""

from __future__ import annotations

import json
import sys
import time
import tkinter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modules.ui.TrainUI import TrainUI
    from modules.ui.widgets.LossChart import LossChart
    from modules.ui.widgets.Thumbnails import Thumbnails
    from modules.ui.widgets.VirtualGrid import VirtualGrid

TICK_MS = 10
REST_SECONDS = 1.0  # without anything being built: then a tab is there, with what is read in the background for it
WAIT_EVERY = 5  # steps of scrolling between two at which the pictures in sight are waited for
WHEEL_MS = 30  # between two notches of the wheel
WHEELS_TO_A_JUMP = 40
NUM_DRAWS = 20
LONGEST_WAIT_SECONDS = 300.0


def first_paint(state_dir: Path) -> dict[str, float]:
    """When the window was drawn for the first time, when its first tab was, and the processor time up to then.

    That is when it can be seen and Tk has nothing more to draw.
    """
    from modules.ui.OpeningWindow import OpeningWindow

    opening = OpeningWindow(state_dir)
    opening.show()
    answer = {"time": time.time(), "cpu_seconds": time.process_time()}
    from modules.ui.TrainUI import TrainUI

    window = TrainUI.take_over(opening, state_dir / "queue")
    window.update()
    while window.is_building:
        window.update()
    window.winfo_pointerx()  # an answer of the display comes after all that it was given to draw
    answer.update(page_time=time.time(), page_cpu_seconds=time.process_time())
    window.destroy()
    return answer


def open_tabs(state_dir: Path, names: str, concept: str) -> dict[str, dict[str, float]]:
    """For each tab but the last, with which the window starts: the longest gap between two ticks while it is opened for
    the first time, and the longest callback.

    names: of the tabs, with commas. concept: a folder in place of the preset's first one; empty for that one.
    """
    tkinter.CallWrapper = TimedCall  # type: ignore[misc] # where tkinter looks it up whenever a callback is made
    from modules.ui.TrainUI import TrainUI

    *order, start = names.split(",")
    (state_dir / "window.json").write_text(json.dumps({"tab": start}), encoding="utf-8")
    app = TrainUI(state_dir, state_dir / "queue")
    if concept:
        app.settings.set("concepts.0.path", concept)
    _run_until_built(app)
    found = {}
    for name in order:
        ticker = Ticker(app)
        TimedCall.longest = 0.0
        app.after(2 * TICK_MS, app.tab_bar.buttons[name].invoke)
        _run_until_built(app)
        ticker.stop()
        found[name] = {"gap_ms": 1000 * max(ticker.gaps), "callback_ms": 1000 * TimedCall.longest}
    app.destroy()
    return found


def pulse(state_dir: Path, run_folder: str, seconds: str) -> dict[str, float]:
    """The ticks of a window that shows a run on the monitor tab."""
    from unittest import mock

    from modules.ui.TrainUI import TrainUI

    app = TrainUI(state_dir, state_dir / "queue")
    chart = _open_run(app, run_folder)
    with mock.patch.object(chart, "redraw", wraps=chart.redraw) as redraw:
        ticker = Ticker(app)
        app.after(int(1000 * float(seconds)), app.quit)
        app.mainloop()
    steps = len(app.run.history)
    ticker.stop()
    app.destroy()
    return {**ticker.in_ms(), "redraws": redraw.call_count, "steps": steps}


def scroll(state_dir: Path, folder: str) -> dict[str, Any]:
    """Scrolls through all pictures of the folder and back, twice; MiB of memory before, between and after."""
    from modules.ui.TrainUI import TrainUI
    from modules.ui.widgets.Thumbnails import Thumbnails

    app = TrainUI(state_dir, state_dir / "queue")
    window = tkinter.Toplevel(app)
    window.geometry("900x700")
    thumbnails = Thumbnails(window, app)
    thumbnails.pack(fill="both", expand=True)
    paths = sorted(str(path) for path in Path(folder).glob("*.jpg"))
    thumbnails.show(paths)
    _run_until_built(app)
    seconds: list[float] = []
    mib = [_resident_mib()]
    for _ in range(2):
        _scroll_to_end_and_back(app, thumbnails, seconds)
        mib.append(_resident_mib())
    answer = {"mib": mib, "pictures": len(paths), "steps": len(seconds), "kept": len(thumbnails._photos)}
    app.destroy()
    return {**answer, "step_ms": 1000 * sum(seconds) / len(seconds), "longest_ms": 1000 * max(seconds)}


def history(state_dir: Path, run_folder: str) -> dict[str, Any]:
    """Opens a run that has ended: the seconds until its last step is read, and the milliseconds of drawing it."""
    from modules.ui.TrainUI import TrainUI

    app = TrainUI(state_dir, state_dir / "queue")
    chart = _open_run(app, None)
    before = _resident_mib()
    ticker = Ticker(app)
    started = time.perf_counter()
    app.run.attach(run_folder)
    _run_until(app, lambda: 0 < app.run.state.step == app.run.state.total)
    read_seconds = time.perf_counter() - started
    ticker.stop()
    after = _resident_mib()
    seconds = []
    for _ in range(NUM_DRAWS):
        started = time.perf_counter()
        chart.redraw()
        app.update()
        seconds.append(time.perf_counter() - started)
    points = app.run.history.points(chart._num_points())
    low, high = min(point[1] for point in points), max(point[2] for point in points)
    answer = {
        "steps": len(app.run.history),
        "points": len(points),
        "keeps_extremes": low < 0.01 and high == 9.0,  # as ui.write_steps has them
        "read_seconds": read_seconds,
        "draw_ms": 1000 * sorted(seconds)[NUM_DRAWS // 2],
        "mib": None if before is None or after is None else after - before,
        "p99_ms": ticker.in_ms()["p99_ms"],
    }
    app.destroy()
    return answer


def dataset(state_dir: Path, folder: str, seconds: str) -> dict[str, Any]:
    """The ticks of a window whose dataset window scrolls through all images of the folder, and how soon it shows the
    first ones, for the first time and once they were shown before."""
    tkinter.CallWrapper = TimedCall  # type: ignore[misc] # where tkinter looks it up whenever a callback is made
    from modules.ui.TrainUI import TrainUI
    from modules.ui.windows.DatasetWindow import open_dataset

    (state_dir / "window.json").write_text(json.dumps({"tab": "tools"}), encoding="utf-8")
    app = TrainUI(state_dir, state_dir / "queue")
    app.settings.set("concepts.0.path", folder)
    _run_until_built(app)
    shown_seconds = []
    for _ in range(2):
        started = time.perf_counter()
        window = open_dataset(app, 0)
        cells = window.cells
        _run_until(app, partial(_is_shown, cells))
        shown_seconds.append(time.perf_counter() - started)
        if len(shown_seconds) == 1:
            window.hide()
            app.update()
    _run_until(app, lambda: window.view.num_read == len(window.view.items))
    before = _resident_mib()
    ticker = Ticker(app)
    TimedCall.longest = 0.0
    steps = _scroll_as_a_person(app, cells, time.perf_counter() + float(seconds))
    ticker.stop()
    after = _resident_mib()
    answer: dict[str, Any] = {
        **ticker.in_ms(),
        "callback_ms": 1000 * TimedCall.longest,
        "images": len(window.view.items),
    }
    answer |= {"mib": None if before is None or after is None else after - before, "steps": steps}
    app.destroy()
    return answer | {"first_seconds": shown_seconds[0], "again_seconds": shown_seconds[1]}


class Ticker:
    """Asks the event loop to call it every TICK_MS and keeps the seconds from each time to the next."""

    def __init__(self, app: TrainUI):
        self.gaps: list[float] = []
        self.own: list[float] = []  # processor time of Tk's thread in each
        self._app = app
        self._own_last = time.thread_time()
        self._last = time.perf_counter()
        self._timer = app.after(TICK_MS, self._tick)

    def in_ms(self) -> dict[str, float]:
        gaps = sorted(1000 * gap for gap in self.gaps)
        p99 = gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))]
        own = sorted(1000 * used for used in self.own)
        own_p99 = own[min(len(own) - 1, int(0.99 * len(own)))] if own else 0.0
        found = {"ticks": len(gaps), "median_ms": gaps[len(gaps) // 2], "p99_ms": p99, "longest_ms": gaps[-1]}
        return {**found, "own_p99_ms": own_p99}

    def stop(self) -> None:
        self.gaps.append(time.perf_counter() - self._last)
        self._app.after_cancel(self._timer)

    def _tick(self) -> None:
        now = time.perf_counter()
        self.gaps.append(now - self._last)
        own = time.thread_time()
        self.own.append(own - self._own_last)
        self._last, self._own_last = now, own
        self._timer = self._app.after(TICK_MS, self._tick)


class TimedCall(tkinter.CallWrapper):
    """A callback of Tk. longest: the seconds of the longest one."""

    longest = 0.0

    def __call__(self, *args: object) -> object:
        started = time.perf_counter()
        try:
            return super().__call__(*args)
        finally:
            TimedCall.longest = max(TimedCall.longest, time.perf_counter() - started)


def _open_run(app: TrainUI, run_folder: str | None) -> LossChart:
    """The chart of the losses on the monitor tab; run_folder: shows this run."""
    if run_folder is not None:
        app.run.attach(run_folder)
    tab = app.open_tab("monitor")
    _run_until_built(app)
    return tab.chart


def _scroll_to_end_and_back(app: TrainUI, thumbnails: Thumbnails, seconds: list[float]) -> None:
    """By pages; `seconds` gets the time that each step takes until it is drawn."""
    for direction in ("1", "-1"):
        place = None
        number = 0
        while place != list(thumbnails._offset):
            place = list(thumbnails._offset)
            started = time.perf_counter()
            thumbnails._scroll(1, "scroll", direction, "pages")
            app.update()
            seconds.append(time.perf_counter() - started)
            number += 1
            if number % WAIT_EVERY == 0:
                _run_until(app, lambda: not thumbnails._is_loading)


def _is_shown(cells: VirtualGrid) -> bool:
    """Whether everything in sight is decoded."""
    return bool(cells._in_sight) and cells._in_sight.keys() <= cells._photos.keys()


def _scroll_as_a_person(app: TrainUI, cells: VirtualGrid, end: float) -> int:
    """By the wheel, with a jump of the scrollbar now and then, until the clock says so; returns the number of steps."""
    steps = 0

    def step() -> None:
        nonlocal steps
        if time.perf_counter() > end:
            app.quit()
            return
        steps += 1
        if steps % WHEELS_TO_A_JUMP:
            cells._scroll(1, "scroll", "1", "units")
        else:
            cells._scroll(1, "moveto", str(steps // WHEELS_TO_A_JUMP * 0.37 % 1))
        app.after(WHEEL_MS, step)

    app.after(0, step)
    app.mainloop()
    return steps


def _run_until_built(app: TrainUI) -> None:
    rest = time.perf_counter() + REST_SECONDS

    def is_built() -> bool:
        nonlocal rest
        if app.is_building:
            rest = time.perf_counter() + REST_SECONDS
        return time.perf_counter() > rest

    _run_until(app, is_built)


def _run_until(app: TrainUI, condition: Callable[[], bool]) -> None:
    """Runs the event loop until the condition holds; raises TimeoutError if it does not in LONGEST_WAIT_SECONDS."""
    end = time.perf_counter() + LONGEST_WAIT_SECONDS

    def look() -> None:
        if condition() or time.perf_counter() > end:
            app.quit()
        else:
            app.after(TICK_MS, look)

    app.after(0, look)
    app.mainloop()
    if time.perf_counter() > end:
        raise TimeoutError("the window did not get there in time")


def _resident_mib() -> float | None:
    """Memory of this process now; None where the system does not tell."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    fields = dict(line.split(":", 1) for line in status.read_text(encoding="ascii").splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


FUNCTIONS = {function.__name__: function for function in (first_paint, open_tabs, pulse, scroll, history, dataset)}

if __name__ == "__main__":
    from modules.session.program_end import end_program
    from modules.ui.toolkit import load_toolkit

    load_toolkit()
    end_program(lambda: print(json.dumps(FUNCTIONS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:]))), waits=False)
