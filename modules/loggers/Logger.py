"""What all loggers have in common: a listener of a training that writes its figures somewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from modules.config.errors import UserError, first_line
from modules.loggers.figures import step_figures
from modules.session.printing import print_line
from modules.session.StepInfo import StepInfo
from modules.session.TrainCallbacks import TrainCallbacks

Tell = Callable[[str], None]
CLOSE_SECONDS = 50.0  # less than the shortest time after which a rank counts as hung


def _print(text: str) -> None:
    print_line(text, sys.stderr)


@dataclass(frozen=True)
class LoggedRun:
    """The run that a logger writes about.

    folder: of the run, whose name is also the run's name elsewhere. settings: all of them, as plain data.
    resumes: whether the run continues, and so does what was logged of it. warn, tell: pass a sentence to people.
    """

    folder: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    resumes: bool = False
    warn: Tell = _print
    tell: Tell = _print


class Logger(TrainCallbacks):
    """Logs a training. Subclasses write figures, and samples if they can.

    Only rank 0 starts its loggers; the others leave theirs out. A logger that is not started can be sent to other
    processes.

    every_steps: log the figures of every so many optimizer steps.
    """

    title: ClassVar[str]  # of what it logs to, as messages name it

    def __init__(self, every_steps: int = 1):
        if isinstance(every_steps, bool) or not isinstance(every_steps, int) or every_steps < 1:
            raise UserError(f"every_steps {every_steps!r}: it must be a whole number from 1 on.")
        self._every_steps = every_steps
        self._step = 0  # the last one

    def start(self, run: LoggedRun) -> None:
        """Called on rank 0 before anything is logged."""

    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        """Logs values by name. step: optimizer steps done."""
        raise NotImplementedError

    def log_samples(self, folder: Path, step: int) -> None:
        """Logs the samples of all ranks, which are files in `folder`."""

    def end(self) -> None:
        """Called when nothing more will be logged, before `close`."""

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Called when the training has ended, however it did. seconds: the most that it may take; again: no effect."""

    def on_step(self, info: StepInfo) -> None:
        self._step = info.step
        if info.step % self._every_steps == 0:
            self.log_figures(step_figures(info), info.step)

    def on_validation(self, step: int, samples: int, loss: float | None, ema_loss: float | None) -> None:
        figures = {"validation/loss": loss, "validation/ema_loss": ema_loss}
        self.log_figures({name: value for name, value in figures.items() if value is not None}, step)

    def on_epoch(self, epoch: int, figures: Mapping[str, float]) -> None:
        self.log_figures({f"epoch/{name}": value for name, value in figures.items()}, self._step)

    def on_figures(self, step: int, figures: Mapping[str, float]) -> None:
        self.log_figures({f"validation/{name}": value for name, value in figures.items()}, step)

    def on_samples(self, folder: str | Path, step: int) -> None:
        self.log_samples(Path(folder), step)


def close_loggers(loggers: Sequence[Logger], seconds: float = CLOSE_SECONDS) -> None:
    """Closes all of them, side by side. seconds: the most that it may take."""
    for logger in loggers:
        logger.end()
    deadline = time.monotonic() + seconds
    for logger in loggers:
        logger.close(max(0.0, deadline - time.monotonic()))


class FileLogger(Logger):
    """A logger that writes files. If the disk fails, logging stops and training continues."""

    def __init__(self, every_steps: int = 1):
        super().__init__(every_steps)
        self._warn: Tell = _print
        self._has_failed = False

    def start(self, run: LoggedRun) -> None:
        self._warn = run.warn

    def attempt(self, write: Callable[..., object], *arguments: Any) -> None:
        """Calls `write`, unless an earlier call has failed; an OSError or UserError stops the logging."""
        if self._has_failed:
            return
        try:
            partial(write, *arguments)()
        except (OSError, UserError) as error:
            self._has_failed = True
            reason = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
            self._warn(f"{self.title} logging stops: {reason}.")
