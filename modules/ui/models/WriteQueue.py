"""Makes changes to files one after the other, in a thread, in the order in which they were asked for. No Tk."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from modules.config.errors import UserError

if TYPE_CHECKING:
    from modules.ui.models.Scheduler import Scheduler


class _Change(NamedTuple):
    """As of `WriteQueue.add`."""

    write: Callable[[], Any]
    then: Callable[[Any], object]
    failed: Callable[[Exception], object]
    keep: Callable[[], str]


class _Refused(NamedTuple):
    """What has become of a change. Not raised, so that only this queue tells it."""

    error: UserError


class _Refusals:
    """What a queue's threads know of it, so that they hold no widget: changes that were refused.

    give_up: called with what to say of one that nobody can be asked about any more.
    """

    def __init__(self, give_up: Callable[[str], object]):
        self._give_up = give_up
        self._lock = threading.Lock()
        self._is_closed = False
        self._untold: tuple[_Change, UserError] | None = None  # `failed` was not called with it yet

    def add(self, change: _Change, error: UserError) -> None:
        with self._lock:
            is_closed = self._is_closed
            self._untold = None if is_closed else (change, error)
        if is_closed:
            self.keep(change, error)

    def told(self) -> None:
        self._untold = None

    def close(self) -> tuple[_Change, UserError] | None:
        """From now on, what is added is kept at once. Returns the change that nobody was told of yet."""
        with self._lock:
            untold, self._untold, self._is_closed = self._untold, None, True
        return untold

    def keep(self, change: _Change, error: UserError) -> None:
        self._give_up(f"{error} {change.keep()}".rstrip())


class WriteQueue:
    """is_wanted: whether what has become of a change is still to be told. on_written: called after each change.
    on_refused: called, in a thread, with what to say of a change that was refused when `close` had been called."""

    def __init__(
        self,
        scheduler: Scheduler,
        is_wanted: Callable[[], object],
        on_written: Callable[[], object],
        on_refused: Callable[[str], object],
    ):
        self._scheduler, self._is_wanted, self._on_written = scheduler, is_wanted, on_written
        self._refusals = _Refusals(on_refused)
        self._waiting: deque[_Change] = deque()
        self._is_writing = False
        self._written = threading.Event()  # whether the change that is being made is made
        self._written.set()

    @property
    def is_busy(self) -> bool:
        """Whether changes are still to be made."""
        return self._is_writing or bool(self._waiting)

    def add(
        self,
        write: Callable[[], Any],
        then: Callable[[Any], object],
        failed: Callable[[Exception], object],
        keep: Callable[[], str] = str,
    ) -> None:
        """Change files by `write`, in a thread, once earlier changes are made. then, failed: called with what it has
        returned, or with the UserError that it has raised; any other error is not caught. keep: called in place of
        `failed`, in a thread, when nobody can be asked any more: keeps what would be lost and says where, if anything
        would."""
        self._waiting.append(_Change(write, then, failed, keep))
        self._write_next()

    def when_done(self, then: Callable[[], object]) -> None:
        """Call `then` once all changes so far are made."""
        if self.is_busy:
            self.add(lambda: None, lambda nothing: then(), lambda error: None)
        else:
            then()

    def close(self) -> None:
        """The window closes: make all changes that wait, in one thread. What another program has changed meanwhile
        stays as it is, and the change that is refused for it is kept."""
        changes, self._waiting = self._waiting, deque()
        refusals, written = self._refusals, self._written
        untold = refusals.close()

        def write_all() -> None:
            if untold is not None:
                refusals.keep(*untold)
            written.wait()
            for change in changes:
                try:
                    change.write()
                except UserError as error:
                    refusals.keep(change, error)

        if changes or untold is not None:
            self._scheduler.in_background(write_all, lambda nothing: None)

    def _write_next(self) -> None:
        if self._is_writing or not self._waiting:
            return
        self._is_writing = True
        change, refusals = self._waiting.popleft(), self._refusals
        self._written = written = threading.Event()

        def write() -> Any:
            try:
                return change.write()
            except UserError as error:
                refusals.add(change, error)
                return _Refused(error)
            finally:
                written.set()

        def take(result: Any) -> None:
            self._is_writing = False
            refusals.told()
            if self._is_wanted():
                if isinstance(result, _Refused):
                    change.failed(result.error)
                else:
                    change.then(result)
                    self._on_written()
            self._write_next()

        def fail(error: Exception) -> None:
            self._is_writing = False
            self._write_next()
            raise error

        self._scheduler.in_background(write, take, fail)
