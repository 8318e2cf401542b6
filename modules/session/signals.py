"""Which signals ask a run to stop, how they are answered, and how those that come too early are remembered."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FrameType

Handler = Callable[[int, FrameType | None], None]

# Ctrl-C; what schedulers and systemd end a process with; on Windows Ctrl-Break, the one that another process can send
STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name))
# The terminal was closed. The shell and the kernel both say so, systemd sends it after SIGTERM: it counts once, and
# never as the second signal that ends a run at once. None on Windows.
HANGUP_SIGNALS = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()


class EarlySignal:
    """A handler that remembers a signal until somebody can act on it; without one it would end the process.

    has_come: whether it did.
    """

    def __init__(self) -> None:
        self.has_come = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.has_come = True


def stop_signals() -> tuple[int, ...]:
    """What asks this process to stop; without HANGUP_SIGNALS where it was started to ignore them, as by nohup."""
    return (*STOP_SIGNALS, *(number for number in HANGUP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN))


def remember_signals(numbers: Collection[int]) -> None:
    """From now on each of them, also one that was blocked, is kept by an `EarlySignal` for `signals_answered`."""
    for number in numbers:
        if not isinstance(signal.getsignal(number), EarlySignal):
            signal.signal(number, EarlySignal())
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


@contextlib.contextmanager
def signals_remembered(numbers: Collection[int]) -> Iterator[None]:
    """`remember_signals` for a block; handlers that the block leaves behind stay.

    Outside the main thread, which alone can handle signals, nothing changes.
    """
    if not _is_main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    remember_signals(numbers)
    try:
        yield
    finally:
        for number, handler in before.items():
            if isinstance(signal.getsignal(number), EarlySignal):
                signal.signal(number, handler)


@contextlib.contextmanager
def signals_answered(handlers: Mapping[int, Handler]) -> Iterator[None]:
    """Inside, each signal has its handler, which is called at once where an `EarlySignal` has remembered the signal.

    Outside the main thread, which alone can handle signals, nothing changes.
    """
    if not _is_main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        for number, handler in before.items():
            if isinstance(handler, EarlySignal) and handler.has_come:
                handlers[number](number, None)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def signals_blocked(numbers: Collection[int]) -> Iterator[None]:
    """Processes that are started inside start with `numbers` blocked; `remember_signals` ends that.

    A signal may be sent to all processes of a job or a terminal, of which most have no use for it and would end. This
    process hears of what comes meanwhile, at the latest when the block is over.
    """
    if not numbers:  # on Windows, which can block none
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
