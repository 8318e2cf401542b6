"""Progress reports and stop requests while a run starts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NoReturn

from modules.distributed.Runtime import REQUEUE
from modules.trainer.TrainingError import StopRequested

if TYPE_CHECKING:
    from modules.distributed.Runtime import Runtime
    from modules.session.TrainCallbacks import TrainCallbacks
    from modules.session.TrainCommands import TrainCommands


class StartProgress:
    """Used while a run is prepared, when there are no steps to exchange stop requests between ranks."""

    def __init__(self, runtime: Runtime, callbacks: TrainCallbacks, commands: TrainCommands):
        self._runtime = runtime
        self._callbacks = callbacks
        self.commands = commands
        self._last_report = 0.0

    def report(self, text: str, done: int, total: int) -> None:
        """Reports progress at most once a second, and the end: caching reports every few images."""
        if done == total or time.monotonic() - self._last_report >= 1:
            self._last_report = time.monotonic()
            self._callbacks.on_progress(text, done, total)

    def report_or_stop(self, text: str, done: int, total: int) -> None:
        """Reports progress, or raises StopRequested; cached data is kept."""
        self.raise_if_stop_requested()
        self.report(text, done, total)

    def warn(self, text: str) -> None:
        """Shows a warning that every rank finds, on rank 0 only."""
        if self._runtime.is_main:
            self._callbacks.on_warning(text)

    def raise_if_stop_requested(self) -> None:
        """Raises StopRequested if any rank was asked to stop before training began."""
        if self.commands.stopping:
            self._runtime.veto_start(self.commands.requeues)
        if self._runtime.start_vetoed:
            self.raise_stop()

    def raise_stop(self) -> NoReturn:
        """Raises StopRequested; requests a requeue first if any rank was asked for one."""
        if self._runtime.start_decision == REQUEUE:  # the signal may have reached only another rank
            self.commands.requeue()
        raise StopRequested
