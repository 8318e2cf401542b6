"""How a child process of the dataset tools is asked to end: by a signal, or by a line on its stdin."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import IO

from modules.session.signals import signals_answered, stop_signals

CANCEL = "cancel"


class Cancellation:
    """Whether the work is to end. The first signal asks for it; a second one ends the process at once."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def __call__(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        self._asked.set()

    @contextlib.contextmanager
    def by_signals(self) -> Iterator[None]:
        """Context in which the signals that end a process ask for it instead."""

        has_come = False  # a line on stdin is no signal: who sends both asks once

        def answer(number: int, frame: FrameType | None) -> None:
            nonlocal has_come
            if has_come:
                raise KeyboardInterrupt
            has_come = True
            self.ask()

        with signals_answered(dict.fromkeys(stop_signals(), answer)):
            yield

    def listen(self, lines: IO[str], heard: Callable[[str], None] = lambda line: None) -> None:
        """From now on, obey the line "cancel" on `lines`, whose end also means that nobody waits for the work.

        heard: called in another thread with every other line.
        """

        def read() -> None:
            for line in lines:
                if line.strip() == CANCEL:
                    break
                heard(line)
            self.ask()

        threading.Thread(target=read, daemon=True).start()
