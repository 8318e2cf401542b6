"""Who listens to a training of TrainingEngine, beside the program's own callbacks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from modules.config.errors import UserError, first_line
from modules.loggers.Logger import CLOSE_SECONDS, LoggedRun, Logger, close_loggers
from modules.loggers.TensorBoardLogger import TensorBoardLogger
from modules.session.printing import print_line
from modules.session.StepInfo import StepInfo
from modules.session.TrainCallbacks import CallbackList, TrainCallbacks

SECONDS_BETWEEN_LINES = 10.0
STEPS_BETWEEN_POINTS = 10  # of the curves over steps


def listeners(callbacks: TrainCallbacks | Iterable[TrainCallbacks] | None, is_main: bool) -> CallbackList:
    """The program's `callbacks`, and on rank 0 what prints warnings, if none of them takes them, progress and curves.

    The other ranks leave out loggers. Raises UserError for anything else than TrainCallbacks.
    """
    given = [callbacks] if isinstance(callbacks, TrainCallbacks) else callbacks or []
    if not isinstance(given, Iterable):
        raise _refused(given)
    own = []
    for listener in given:
        if not isinstance(listener, TrainCallbacks):
            raise _refused(listener)
        if is_main or not isinstance(listener, Logger):
            own.append(listener)
    printing: list[TrainCallbacks] = [PrintProgress()] if is_main else []
    if is_main and not any(map(_takes_warnings, own)):
        printing.append(PrintWarnings())
    curves: list[TrainCallbacks] = [EngineBoard()] if is_main else []
    return CallbackList([*printing, *own, *curves])


class PrintWarnings(TrainCallbacks):
    """Prints warnings."""

    def on_warning(self, text: str) -> None:
        print_line(f"Warning: {text}")


class PrintProgress(TrainCallbacks):
    """Prints where an epoch that takes long is, every few seconds."""

    def __init__(self) -> None:
        self._epoch = 0
        self._printed = 0.0
        self._samples = 0

    def on_step(self, info: StepInfo) -> None:
        now = time.monotonic()
        if info.epoch != self._epoch:
            self._epoch, self._printed, self._samples = info.epoch, now, 0
            return
        self._samples += info.samples
        seconds = now - self._printed
        if seconds < SECONDS_BETWEEN_LINES:
            return
        loss = "not finite" if info.loss is None else f"{info.loss:.4g}"
        of_all = f" of {info.steps_total}" if info.steps_total else ""
        print_line(f"  step {info.step}{of_all}: loss {loss}, {self._samples / seconds:.4g} samples/s")
        self._printed, self._samples = now, 0


class EngineBoard(Logger):
    """TensorBoard logs in `tensorboard` with the figures of epochs, and in `steps` those of every few steps."""

    title = "TensorBoard"

    def start(self, run: LoggedRun) -> None:
        folder = run.folder / "tensorboard"
        self._epochs = TensorBoardLogger(folder)
        self._steps = TensorBoardLogger(folder / "steps", STEPS_BETWEEN_POINTS)
        for logger in (self._epochs, self._steps):
            logger.start(run)

    def on_step(self, info: StepInfo) -> None:
        self._steps.on_step(info)

    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        self._steps.log_figures(figures, step)

    def on_epoch(self, epoch: int, figures: Mapping[str, float]) -> None:
        self._epochs.log_figures(figures, epoch)

    def on_figures(self, step: int, figures: Mapping[str, float]) -> None:
        self._steps.log_figures(figures, step)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        self._epochs.close()
        self._steps.close()


@contextlib.contextmanager
def logging_to(folder: Path, listening: CallbackList, resumes: bool) -> Iterator[None]:
    """Inside, the loggers among those `listening` log a training whose output is in `folder`.

    resumes: whether the training continues, and so does what was logged of it.
    """
    run = LoggedRun(folder, {}, resumes, listening.on_warning, print_line)
    with contextlib.ExitStack() as stack:
        loggers: list[Logger] = []
        stack.callback(close_loggers, loggers)
        for logger in listening.listeners:
            if isinstance(logger, Logger):
                folder.mkdir(parents=True, exist_ok=True)
                logger.start(run)
                loggers.append(logger)
        yield


@contextlib.contextmanager
def told_of_failure(listener: TrainCallbacks) -> Iterator[None]:
    """Tells `listener` of an error inside, which goes on."""
    try:
        yield
    except Exception as error:
        listener.on_failed(first_line(error))
        raise


def _takes_warnings(listener: TrainCallbacks) -> bool:
    kind = type(listener)
    return kind.on_warning is not TrainCallbacks.on_warning or kind.on_event is not TrainCallbacks.on_event


def _refused(value: object) -> UserError:
    spoken = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    return UserError(f"callbacks: {spoken} is not a TrainCallbacks; derive your class from it.")
