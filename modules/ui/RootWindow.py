"""The root window's event loop: one timer runs everything that is due, threads do what takes time.

Tk may only be used from the main thread. Slow work runs in a thread and hands its result to a queue, which the timer
empties at most 50 ms later. Nothing else in the window starts a timer that repeats.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import queue
import sys
import time
import tkinter
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import customtkinter as ctk
from customtkinter.windows.widgets.core_rendering import CTkCanvas

from modules.config.errors import UserError
from modules.session.printing import print_text
from modules.ui import keyboard
from modules.ui.App import MessageKind
from modules.ui.models.Preferences import Preferences
from modules.ui.models.WorkerThreads import WorkerThreads
from modules.ui.theme import Theme

T = TypeVar("T")

PUMP_MS = 50
BUDGET_SECONDS = 0.008  # of one round of the pump; the rest waits for the next round
SLICE_SECONDS = 0.012  # of building forms before events are handled again
SWITCH_SECONDS = 0.001  # how soon a computing thread yields to the window, which needs the GIL for each call of Tk
UNSEEN_MS = 2000  # after which threads start though the window was never drawn, as where it starts minimized
COLLECT_SECONDS = 2.0
COLLECT_ALL_MS = 60_000
END = object()

_Result = tuple[int, Any, Exception | None]  # of work in a thread: its number, what it has returned or raised


class RootWindow(ctk.CTk):
    """An empty root window with the application's theme, keyboard handling and scheduling. TrainUI fills it.

    preferences: read for the appearance, the scale and the tab in front; not written.
    """

    def __init__(self, preferences: Preferences):
        super().__init__(className="Chorus")
        self.preferences = preferences
        self._results: queue.SimpleQueue[_Result] = queue.SimpleQueue()
        self._waiting: dict[int, tuple[Callable[[Any], object], Callable[[Exception], object] | None]] = {}
        self._due: list[tuple[float, int, float, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._steps: list[tuple[str, Iterator[object]]] = []
        self._threads = WorkerThreads()
        self.is_drawn = False
        self.is_opening = False  # whether its contents are still to come
        self._has_frozen = False  # what is not to be looked through for garbage
        self._undrawn: list[Callable[[], None]] | None = []  # what starts the threads that wait; None: no more do
        self.before_closing: list[Callable[[Callable[[], object]], bool]] = []
        self.theme = Theme(self, preferences.appearance, preferences.scale)
        self.configure(fg_color=Theme.page)
        self.bind_class("Toplevel", "<Destroy>", _forget_scaling, add="+")
        keyboard.install(self)
        _lay_out_when_idle()
        _draw_to_the_pixel()
        self._collect_garbage_here()
        sys.setswitchinterval(SWITCH_SECONDS)
        self.bind("<Visibility>", self._on_visibility, add="+")
        self.after(UNSEEN_MS, self._start_threads)
        self._pump()

    def in_background(
        self,
        work: Callable[[], T],
        then: Callable[[T], None],
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        number = next(self._numbers)
        self._waiting[number] = then, failed  # here alone: the last to hold a widget must not be a thread

        def start() -> None:
            results = self._results
            try:
                self._threads.run(partial(_do, work, number, results))
            except RuntimeError as error:  # the system refuses to start another thread
                results.put((number, None, error))

        if self._undrawn is None:
            start()
        else:
            self._undrawn.append(start)

    def every(self, seconds: float, job: Callable[[], object]) -> Callable[[], None]:
        number = next(self._numbers)
        heapq.heappush(self._due, (time.monotonic(), number, seconds, job))

        def cancel() -> None:
            self._due = [entry for entry in self._due if entry[1] != number]
            heapq.heapify(self._due)

        return cancel

    def in_slices(self, steps: Iterator[object]) -> None:
        self._steps.append((self.preferences.tab, steps))
        if len(self._steps) == 1:
            self.after(1, self._run_slice)

    def finish(self, seconds: float) -> None:
        """After the window has closed: wait so long at most for what its threads still do, such as writing files, and
        say in the terminal what they could not."""
        self._threads.wait(seconds)
        while not self._results.empty():
            _, _, error = self._results.get_nowait()
            if isinstance(error, UserError | OSError):
                print_text(f"{error}", sys.stderr)

    @property
    def is_building(self) -> bool:
        """Whether forms are still being built in slices."""
        return bool(self._steps)

    def show_message(self, text: str, kind: MessageKind = "info", holds: Callable[[], bool] | None = None) -> None:
        raise NotImplementedError

    def report_callback_exception(self, kind, error, trace) -> None:
        """Called by Tk for an exception in a callback: a bug of Chorus, which the user is asked to report."""
        print_text("".join(traceback.format_exception(kind, error, trace)), sys.stderr)
        self.show_message(f"Something went wrong in the window ({kind.__name__}: {error}). Please report it.", "error")

    def winfo_children(self) -> list[tkinter.Misc]:
        """All children but the windows that Tk itself creates, such as its file dialog: tkinter cannot name those."""
        return list(self.children.values())

    def focus_get(self) -> tkinter.Misc | None:
        try:
            return super().focus_get()
        except KeyError:  # the focus is in a window that Tk itself created
            return None

    @property
    def has_focus(self) -> bool:
        """Whether the focus is in any window of Chorus, also one that Tk itself created, which tkinter cannot name."""
        return bool(self.tk.call("focus", "-displayof", self))

    def destroy(self) -> None:
        for timer in self.tk.splitlist(self.tk.call("after", "info")):
            self.tk.call("after", "cancel", timer)  # it would fire after the window is gone and fail
        self.theme.close()
        super().destroy()
        if self._has_frozen:
            gc.unfreeze()

    def _on_visibility(self, event: tkinter.Event) -> None:
        if event.widget is self:
            self.after_idle(self._note_drawn)

    def _note_drawn(self) -> None:
        self.is_drawn = True

    def _start_threads(self) -> None:
        """From now on, threads start at once. Those of the very first moments would hold up the first picture."""
        waiting, self._undrawn = self._undrawn or [], None
        for start in waiting:
            start()

    def _pump(self) -> None:
        self.after(PUMP_MS, self._pump)
        if self._undrawn is not None and self.is_drawn and not self._steps and not self.is_opening:
            self._start_threads()
        end = time.perf_counter() + BUDGET_SECONDS
        while time.perf_counter() < end:
            try:
                result = self._results.get_nowait()
            except queue.Empty:
                break
            self._call(partial(self._take, *result))
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

    def _call(self, task: Callable[[], object]) -> None:
        """Run a task; an exception in it must not keep the others from running."""
        try:
            task()
        except Exception:
            self.report_callback_exception(*sys.exc_info())

    def _take(self, number: int, result: Any, error: Exception | None) -> None:
        then, failed = self._waiting.pop(number)
        if error is None:
            then(result)
        elif failed is None:
            raise error
        else:
            failed(error)

    def _collect_garbage_here(self) -> None:
        """Collect garbage in the main thread only, from now on, even when the window has closed: threads go on, and the
        window is then garbage itself.

        Python collects in whichever thread is running, but Tk's images and variables have a `__del__` that fails
        elsewhere ("main thread is not in main loop"), and Tcl ends the process if its interpreter is freed there
        (https://github.com/python/cpython/issues/83274).
        """
        gc.disable()
        self.every(COLLECT_SECONDS, lambda: gc.collect(1))
        self.after(COLLECT_ALL_MS, self._collect_all)

    def _collect_all(self) -> None:
        """From now on, collect what is made later completely, too."""
        gc.freeze()  # modules and tabs are there to stay, and looking through them would take 50 ms each time
        self._has_frozen = True
        self.every(COLLECT_ALL_MS / 1000, gc.collect)


def _do(work: Callable[[], object], number: int, results: queue.SimpleQueue[_Result]) -> None:
    """In a thread."""
    try:
        result = work()
    except Exception as error:
        results.put((number, None, error))
    else:
        results.put((number, result, None))


def _forget_scaling(event: tkinter.Event) -> None:
    """Drop CustomTkinter's references to a destroyed window: it never frees one that it has scaled."""
    for kept in (ctk.ScalingTracker.window_dpi_scaling_dict, ctk.ScalingTracker.window_widgets_dict):
        kept.pop(event.widget, None)


def _lay_out_when_idle() -> None:
    """Leave layout to Tk, which does it when idle. CustomTkinter's scrollbars and option menus lay out the whole window
    each time one of them is drawn: opening a tab then stalls for 125 ms instead of 20."""
    CTkCanvas.update_idletasks = lambda canvas: None


def _draw_to_the_pixel() -> None:
    """Keep CustomTkinter from rounding the unscaled sizes of widgets down: at scale 0.8 it would draw an entry of 22
    pixels with 20, and its text would cover the bottom border."""
    ctk.CTkBaseClass._reverse_widget_scaling = lambda widget, pixels: pixels / widget._get_widget_scaling()
