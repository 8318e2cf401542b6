"""Callbacks of Tk that come late, as on a machine that is busy, and the same way each time."""

from __future__ import annotations

import itertools
import random
import sys
import tkinter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from modules.ui.models.WorkerThreads import WorkerThreads

MOST_LATE = 0.4  # seconds
TICK = 0.003  # seconds between two looks at the clock


class LateCallbacks:
    """Delays what is due by `after` and `after_idle`, and the handlers of <Map>, each by up to MOST_LATE seconds.

    The window gets a clock that `advance` moves on, and every look at it a little, and does at once what it would do in
    a thread: everything that happens depends on `chance` alone.
    """

    def __init__(self, chance: random.Random, patch: pytest.MonkeyPatch):
        self.now = 0.0
        self._chance = chance
        self._numbers = itertools.count()
        self._due: dict[str, tuple[float, tkinter.Misc, Callable[[], object]]] = {}
        patch.setattr(tkinter.Misc, "after", lambda *arguments: self._after(*arguments))
        patch.setattr(tkinter.Misc, "after_cancel", lambda widget, key: self._due.pop(key, None))
        patch.setattr(tkinter.Misc, "bind", lambda *arguments, **options: self._bind(*arguments, **options))
        patch.setattr("modules.ui.RootWindow.time", SimpleNamespace(perf_counter=self._look, monotonic=self._look))
        patch.setattr(WorkerThreads, "run", lambda threads, work: work())

    def advance(self, seconds: float) -> None:
        """Move the clock on, and call what is due by then."""
        end = self.now + seconds
        while due := [(when, key) for key, (when, _, _) in self._due.items() if when <= end]:
            when, key = min(due)
            self.now = max(self.now, when)
            _, widget, call = self._due.pop(key)
            if _exists(widget):
                try:
                    call()
                except Exception:
                    widget._root().report_callback_exception(*sys.exc_info())
        self.now = max(self.now, end)

    def _after(self, widget: tkinter.Misc, ms: int | str, call: Callable[..., object], *arguments: Any) -> str:
        key = f"late#{next(self._numbers)}"
        delay = 0.0 if ms == "idle" else ms / 1000
        self._due[key] = self.now + delay + self._chance.uniform(0, MOST_LATE), widget, lambda: call(*arguments)
        return key

    def _bind(self, widget: tkinter.Misc, sequence: str | None = None, func=None, add=None) -> str:
        late = func
        if sequence == "<Map>" and func is not None:
            late = lambda event: self._after(widget, "idle", func, event)  # noqa: E731
        return widget._bind(("bind", widget._w), sequence, late, add)

    def _look(self) -> float:
        self.now += TICK
        return self.now


def _exists(widget: tkinter.Misc) -> bool:
    try:
        return bool(widget.winfo_exists())
    except tkinter.TclError:
        return False
