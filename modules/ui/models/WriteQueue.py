"""Makes changes to files one after the other, in a thread, in the order in which they were asked for. No Tk."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from modules.config.errors import UserError

if TYPE_CHECKING:
    from modules.ui.models.Scheduler import Scheduler


class _Change(NamedTuple):
    """write: in a thread. then, failed: called with what it has returned or raised."""

    write: Callable[[], Any]
    then: Callable[[Any], object]
    failed: Callable[[Exception], object]


class WriteQueue:
    """is_wanted: whether what has become of a change is still to be told. on_written: called after each change."""

    def __init__(self, scheduler: Scheduler, is_wanted: Callable[[], object], on_written: Callable[[], object]):
        self._scheduler, self._is_wanted, self._on_written = scheduler, is_wanted, on_written
        self._waiting: deque[_Change] = deque()
        self._is_writing = False
        self._written = threading.Event()  # whether the change that is being made is made
        self._written.set()

    @property
    def is_busy(self) -> bool:
        """Whether changes are still to be made."""
        return self._is_writing or bool(self._waiting)

    def add(
        self, write: Callable[[], Any], then: Callable[[Any], object], failed: Callable[[Exception], object]
    ) -> None:
        """Change files by `write`, in a thread, once earlier changes are made. then, failed: called with what it has
        returned, or with the UserError that it has raised; any other error is not caught."""
        self._waiting.append(_Change(write, then, failed))
        self._write_next()

    def when_done(self, then: Callable[[], object]) -> None:
        """Call `then` once all changes so far are made."""
        if self.is_busy:
            self.add(lambda: None, lambda nothing: then(), lambda error: None)
        else:
            then()

    def close(self) -> None:
        """The window closes: make all changes that wait, in one thread, and tell nobody. What another program has
        changed meanwhile stays as it is."""
        changes, self._waiting = self._waiting, deque()
        written = self._written

        def write_all() -> None:
            written.wait()
            for change in changes:
                with contextlib.suppress(UserError):
                    change.write()

        if changes:
            self._scheduler.in_background(write_all, lambda nothing: None)

    def _write_next(self) -> None:
        if self._is_writing or not self._waiting:
            return
        self._is_writing = True
        change, then, failed = self._waiting.popleft()
        self._written = written = threading.Event()

        def write() -> Any:
            try:
                return change()
            finally:
                written.set()

        def take(result: Any) -> None:
            self._is_writing = False
            if self._is_wanted():
                then(result)
                self._on_written()
            self._write_next()

        def fail(error: Exception) -> None:
            self._is_writing = False
            if not isinstance(error, UserError):
                self._write_next()
                raise error
            if self._is_wanted():
                failed(error)
            self._write_next()

        self._scheduler.in_background(write, take, fail)
