"""The window's engine room: one pump for everything that is due, threads for what takes time, the keyboard.

Tk belongs to the main thread. What takes time runs in a thread and hands plain data over; the pump takes it from there
50 ms later at most. Nothing else in the window has a timer of its own.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import queue
import sys
import threading
import time
import tkinter
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import customtkinter as ctk
from customtkinter.windows.widgets.core_rendering import CTkCanvas

from modules.session.printing import print_text
from modules.ui import keyboard
from modules.ui.models.BackgroundChecks import BackgroundChecks
from modules.ui.models.DeviceModel import DeviceModel
from modules.ui.models.LaunchModel import LaunchModel
from modules.ui.models.Preferences import Preferences
from modules.ui.models.RunModel import RunModel
from modules.ui.models.SettingsModel import SettingsModel
from modules.ui.SettingsViews import SettingsViews
from modules.ui.theme import Theme

T = TypeVar("T")

PUMP_MS = 50
BUDGET_SECONDS = 0.008  # of one round of the pump: what does not fit waits for the next
SLICE_SECONDS = 0.012  # of building a form; what is asked of the window meanwhile waits no longer
SWITCH_SECONDS = 0.001  # after which a thread that computes lets the window go on, which asks anew at each call of Tk
COLLECT_SECONDS = 2.0
COLLECT_ALL_MS = 60_000
END = object()


class App(ctk.CTk):
    """What every tab and window gets: the settings and their views, the run, the machine, the theme, and a way to do
    things later or elsewhere.

    state_dir: where the window keeps its last state; None keeps nothing.
    """

    def __init__(self, state_dir: Path | None = None):
        super().__init__(className="Chorus")
        self._results: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._due: list[tuple[float, int, float, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._steps: list[tuple[str, Iterator[object]]] = []
        self.preferences = Preferences.load(state_dir / "window.json" if state_dir else None)
        self.theme = Theme(self, self.preferences.appearance, self.preferences.scale)
        self.configure(fg_color=Theme.page)
        self.bind_class("Toplevel", "<Destroy>", _forget_scaling, add="+")
        keyboard.install(self)
        _lay_out_when_idle()
        _draw_to_the_pixel()
        self.settings = SettingsModel(state_dir / "settings.json" if state_dir else None)
        self.views = SettingsViews(self.settings)
        self.run = RunModel()
        self.sought: set[str] = set()  # settings that somebody was led to: shown though they are advanced
        self.is_asking = False  # a question that holds the window is open
        self.log_rank: int | None = None  # whose lines of the log are wanted; None: everybody's
        self.devices = DeviceModel()
        self.launch = LaunchModel()
        self.checks = BackgroundChecks(self)
        self._collect_garbage_here()
        sys.setswitchinterval(SWITCH_SECONDS)
        self._pump()

    def in_background(
        self,
        work: Callable[[], T],
        then: Callable[[T], None],
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """Run `work` in a thread, then `then` with its result on the Tk thread, or `failed` with what it raised.

        `work` must not touch Tk, nor hold any of its objects. Without `failed` the error is reported as a fault, as is
        what `failed` raises: who waits for the end with a flag has to clear it there too.
        """

        def run() -> None:
            try:
                result = work()
            except Exception as error:
                self._results.put(lambda error=error: self._fail(error, failed))
            else:
                self._results.put(lambda: then(result))

        try:
            threading.Thread(target=run, daemon=True).start()
        except RuntimeError as error:  # the system makes no more
            self._results.put(lambda error=error: self._fail(error, failed))

    def every(self, seconds: float, job: Callable[[], None]) -> Callable[[], None]:
        """Call `job` from the pump every so many seconds, first in the next round; it should take a few ms at most.

        Returns a function that ends it: call it when the widget that needs it is destroyed.
        """
        number = next(self._numbers)
        heapq.heappush(self._due, (time.monotonic(), number, seconds, job))

        def cancel() -> None:
            self._due = [entry for entry in self._due if entry[1] != number]
            heapq.heapify(self._due)

        return cancel

    def in_slices(self, steps: Iterator[object]) -> None:
        """Run an iterator to its end, some steps at a time, so that building a long form never stalls the window.

        A step should take a few ms. The iterators of several forms follow each other, those of the tab in front first.
        """
        self._steps.append((self.preferences.tab, steps))
        if len(self._steps) == 1:
            self.after(1, self._run_slice)

    @property
    def is_building(self) -> bool:
        """Whether something is being built in slices."""
        return bool(self._steps)

    def show_message(self, text: str, kind: str = "info") -> None:
        """Tell the person something in the window. kind: "info", "warning" or "error"."""
        raise NotImplementedError

    def open_tab(self, name: str) -> ctk.CTkFrame:
        """Bring a tab to the front and return it; it is made if it was not open before. KeyError for another name."""
        raise NotImplementedError

    def resume_run(self) -> None:
        """Go on with the run in the run folder of the settings, after a check of it."""
        raise NotImplementedError

    def flash(self, path: str) -> None:
        """Bring the field of a setting to the front, give it the focus and flash it."""
        raise NotImplementedError

    def serve_settings_keys(self, window: ctk.CTkToplevel) -> None:
        """Have the keys for undo, redo and save do so in another window that edits the settings."""
        raise NotImplementedError

    def report_callback_exception(self, kind, error, trace) -> None:
        """Called by Tk for what a callback raised: a fault of Chorus, which the person can report."""
        print_text("".join(traceback.format_exception(kind, error, trace)), sys.stderr)
        self.show_message(f"Something went wrong in the window ({kind.__name__}: {error}). Please report it.", "error")

    def winfo_children(self) -> list[tkinter.Misc]:
        """Without the windows that Tk has made by itself, such as that for a file: tkinter knows none of them."""
        return list(self.children.values())

    def focus_get(self) -> tkinter.Misc | None:
        try:
            return super().focus_get()
        except KeyError:  # it is in one of those
            return None

    def destroy(self) -> None:
        for timer in self.tk.splitlist(self.tk.call("after", "info")):
            self.tk.call("after", "cancel", timer)  # what is due after the window is gone would be an error
        self.checks.close()
        self.theme.close()
        super().destroy()
        gc.enable()

    def _pump(self) -> None:
        self.after(PUMP_MS, self._pump)
        end = time.perf_counter() + BUDGET_SECONDS
        while time.perf_counter() < end:
            try:
                task = self._results.get_nowait()
            except queue.Empty:
                break
            self._call(task)
        while self._due and time.perf_counter() < end and self._due[0][0] <= time.monotonic():
            _, number, seconds, job = self._due[0]
            heapq.heapreplace(self._due, (time.monotonic() + seconds, number, seconds, job))
            self._call(job)

    def _run_slice(self) -> None:
        end = time.perf_counter() + SLICE_SECONDS
        while self._steps and time.perf_counter() < end:
            in_front = [entry for entry in self._steps if entry[0] == self.preferences.tab]
            entry = (in_front or self._steps)[0]
            try:
                if next(entry[1], END) is END:
                    self._steps.remove(entry)
            except Exception:
                self._steps.remove(entry)
                self.report_callback_exception(*sys.exc_info())
        if self._steps:
            self.after(1, self._run_slice)

    def _call(self, task: Callable[[], None]) -> None:
        """One task that fails must not keep the others from running."""
        try:
            task()
        except Exception:
            self.report_callback_exception(*sys.exc_info())

    def _fail(self, error: Exception, failed: Callable[[Exception], None] | None) -> None:
        if failed is None:
            raise error
        failed(error)

    def _collect_garbage_here(self) -> None:
        """Python collects garbage in whichever thread is running, but images and variables of Tk have a `__del__`
        that must run in the main one ("main thread is not in main loop")."""
        gc.disable()
        self.every(COLLECT_SECONDS, lambda: gc.collect(1))
        self.after(COLLECT_ALL_MS, lambda: self.every(COLLECT_ALL_MS / 1000, gc.collect))


def _forget_scaling(event: tkinter.Event) -> None:
    """CustomTkinter keeps each window that it has ever scaled, with all that hangs on it."""
    for kept in (ctk.ScalingTracker.window_dpi_scaling_dict, ctk.ScalingTracker.window_widgets_dict):
        kept.pop(event.widget, None)


def _lay_out_when_idle() -> None:
    """CustomTkinter's scrollbars and option menus lay out the whole window each time they are drawn, one within the
    other: 125 ms of stall when a tab is opened, against 20 without. Tk does it by itself when it is idle."""
    CTkCanvas.update_idletasks = lambda canvas: None


def _draw_to_the_pixel() -> None:
    """CustomTkinter rounds the unscaled sizes of its widgets down: at scale 0.8 an entry of 22 pixels would be drawn
    with 20, and its text would cover the line below it."""
    ctk.CTkBaseClass._reverse_widget_scaling = lambda widget, pixels: pixels / widget._get_widget_scaling()
