"""What a start tells, and how it ends where a stop is asked for."""

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
    """Used while a run is prepared, when no step carries what the ranks are asked for."""

    def __init__(self, runtime: Runtime, callbacks: TrainCallbacks, commands: TrainCommands):
        self._runtime = runtime
        self._callbacks = callbacks
        self._commands = commands
        self._told_at = 0.0

    def status(self, text: str) -> None:
        """A status at most once a second: caching tells of every few images."""
        if time.monotonic() - self._told_at >= 1:
            self._told_at = time.monotonic()
            self._callbacks.on_status(text)

    def status_or_stop(self, text: str) -> None:
        """A status, unless a stop was asked for: that ends the start; what is cached stays."""
        self.raise_if_stop_requested()
        self.status(text)

    def warn(self, text: str) -> None:
        """Warns once, on rank 0, of what every rank finds alike."""
        if self._runtime.is_main:
            self._callbacks.on_warning(text)

    def raise_if_stop_requested(self) -> None:
        """Raises StopRequested where any rank was asked to stop before the training began."""
        if self._commands.stopping:
            self._runtime.veto_start(self._commands.requeues)
        if self._runtime.start_vetoed:
            self.raise_stop()

    def raise_stop(self) -> NoReturn:
        """Raises StopRequested, with the request for another turn if any rank got one."""
        if self._runtime.start_decision == REQUEUE:  # the signal may have reached another rank only
            self._commands.requeue()
        raise StopRequested
