"""The signals that ask a run to stop, their handlers, and how signals that arrive too early are kept."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FrameType

Handler = Callable[[int, FrameType | None], None]

# Ctrl-C; the signal of schedulers and systemd; on Windows Ctrl-Break, the only one that another process can send
STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name))
# The terminal was closed. Both the shell and the kernel send it, and systemd sends it after SIGTERM, so it counts once
# and never as the second signal that ends a run at once. None on Windows.
HANGUP_SIGNALS = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()
# By which batch systems announce that they will end a job: Grid Engine and LSF, before the kill and at a limit of CPU
# time. One announcement may be several signals, so they count once, as a hangup does. None on Windows.
NOTICE_SIGNALS = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2", "SIGXCPU") if hasattr(signal, name))


class EarlySignal:
    """A handler that remembers a signal until it can be handled, instead of letting it end the process.

    has_come: whether the signal has arrived.
    """

    def __init__(self) -> None:
        self.has_come = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.has_come = True


def stop_signals() -> tuple[int, ...]:
    """The signals that ask this process to stop, without those that it was started to ignore, as nohup does SIGHUP."""
    optional = (*HANGUP_SIGNALS, *NOTICE_SIGNALS)
    return (*STOP_SIGNALS, *(number for number in optional if signal.getsignal(number) != signal.SIG_IGN))


def stop_message(number: int) -> str:
    """What to tell the user when this signal has asked for a stop."""
    if number in HANGUP_SIGNALS:
        return "The terminal was closed: stopping within two steps"
    if number in NOTICE_SIGNALS:
        return f"Received {signal.Signals(number).name}: stopping within two steps"
    return "Stopping within two steps"


def remember_early_signals() -> None:
    """Keep a stop that is asked for while a script imports its libraries for `signals_answered`.

    Not Ctrl-C, which ends the script at once. Signals that are blocked stay so: those of a rank wait for it.
    """
    for number in stop_signals():
        if number != signal.SIGINT:
            signal.signal(number, EarlySignal())


def forget_early_signals() -> None:
    """Undo `remember_early_signals`: signals end this process again, which ends now if one has come."""
    for number in stop_signals():
        handler = signal.getsignal(number)
        if isinstance(handler, EarlySignal):
            signal.signal(number, signal.SIG_DFL)
            if handler.has_come:
                signal.raise_signal(number)


def remember_signals(numbers: Collection[int]) -> None:
    """From now on, keep each of these signals (even a blocked one) in an `EarlySignal` for `signals_answered`."""
    for number in numbers:
        if not isinstance(signal.getsignal(number), EarlySignal):
            signal.signal(number, EarlySignal())
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


@contextlib.contextmanager
def signals_remembered(numbers: Collection[int]) -> Iterator[None]:
    """`remember_signals` for the duration of a block; handlers that the block itself installs are kept.

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
    """Install handlers for the block; a handler is called at once if an `EarlySignal` has remembered its signal.

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
    """Processes started in the block start with `numbers` blocked, until they call `remember_signals`.

    A signal may be sent to all processes of a job or terminal, most of which do not handle it and would end. This
    process receives signals that arrive meanwhile at the latest when the block ends.
    """
    if not numbers:  # on Windows, which cannot block signals
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
