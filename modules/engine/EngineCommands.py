"""What asks a training of TrainingEngine to stop: the program itself, its parent process, or Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

from modules.session.TerminalCallbacks import TerminalCallbacks
from modules.session.TrainCommands import TrainCommands


class EngineCommands(TrainCommands):
    """The requests of the program, and those of `others`."""

    def __init__(self, *others: TrainCommands):
        super().__init__()
        self._others = list(others)

    def add(self, other: TrainCommands) -> None:
        """From now on, `other` is asked, too."""
        self._others.append(other)

    def take(self) -> frozenset[str]:
        taken = super().take()
        for other in self._others:
            taken |= other.take()
        return taken

    @property
    def stopping(self) -> bool:
        return super().stopping or any(other.stopping for other in self._others)


@contextlib.contextmanager
def stopping_on_ctrl_c(commands: EngineCommands) -> Iterator[None]:
    """Inside, in a program that leaves Ctrl-C to Python, the first one requests a stop, and is raised at the end."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    from modules.launch.run import stop_on

    asked = TrainCommands()
    commands.add(asked)
    with stop_on((signal.SIGINT,), asked, TerminalCallbacks(sys.stderr)):
        yield
    if asked.stopping:
        raise KeyboardInterrupt
