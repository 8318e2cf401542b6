"""What a part of the window needs in order to run something later or in another thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Scheduler(Protocol):
    """Timers and threads. All callbacks run on the Tk thread; only `work` of `in_background` runs in another one."""

    def in_background(
        self,
        work: Callable[[], T],
        then: Callable[[T], None],
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """Run `work` in a thread, then call `then` with its result, or `failed` with the exception it raised.

        The thread starts at once, but not before the window is first drawn, which it would hold up.

        `work` must not use Tk or hold a reference to a Tk object. Without `failed` an exception is reported as a bug,
        as is one that `failed` itself raises: a caller that sets a flag while it waits has to clear it there too.
        """
        ...

    def every(self, seconds: float, job: Callable[[], object]) -> Callable[[], None]:
        """Call `job` soon and then repeatedly; it should take a few milliseconds at most.

        Returns a function that ends it: call it when the widget that needs it is destroyed.
        """
        ...

    def in_slices(self, steps: Iterator[object]) -> None:
        """Exhaust an iterator a few steps at a time, so that building a long form never stalls the window.

        A step should take a few milliseconds. Iterators run one after the other, those of the tab in front first.
        """
        ...

    def after(self, ms: int, func: Callable[..., object], *args: Any) -> str:
        """Call `func(*args)` once, `ms` milliseconds from now. Returns an id for `after_cancel`."""
        ...

    def after_idle(self, func: Callable[..., object], *args: Any) -> str:
        """Call `func(*args)` once all pending events have been handled."""
        ...

    def after_cancel(self, id: str) -> None:
        """Drop a call that `after` or `after_idle` has scheduled."""
        ...
