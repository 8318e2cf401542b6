"""Who listens to a training of TrainingEngine, beside the program's own callbacks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from modules.config.errors import UserError, first_line
from modules.loggers.TensorBoardLogger import TensorBoardLogger
from modules.session.printing import print_line
from modules.session.StepInfo import StepInfo
from modules.session.TrainCallbacks import CallbackList, TrainCallbacks

SECONDS_BETWEEN_LINES = 10.0
STEPS_BETWEEN_POINTS = 10  # of the curves over steps


def listeners(callbacks: TrainCallbacks | Iterable[TrainCallbacks] | None, is_main: bool) -> CallbackList:
    """The program's `callbacks`, and on rank 0 what prints warnings, if none of them takes them, and progress.

    Raises UserError for anything else than TrainCallbacks.
    """
    given = [callbacks] if isinstance(callbacks, TrainCallbacks) else callbacks or []
    if not isinstance(given, Iterable):
        raise _refused(given)
    own = list(given)
    for listener in own:
        if not isinstance(listener, TrainCallbacks):
            raise _refused(listener)
    printing: list[TrainCallbacks] = [PrintProgress()] if is_main else []
    if is_main and not any(map(_takes_warnings, own)):
        printing.append(PrintWarnings())
    return CallbackList([*printing, *own])


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


class EngineBoard(TrainCallbacks):
    """TensorBoard logs: figures of epochs in `folder`, of every few steps in `folder/steps`, whose axes differ."""

    def __init__(self, folder: Path):
        self._epochs = TensorBoardLogger(folder)
        self._steps = TensorBoardLogger(folder / "steps", STEPS_BETWEEN_POINTS)

    def on_step(self, info: StepInfo) -> None:
        self._steps.on_step(info)

    def on_epoch(self, epoch: int, figures: Mapping[str, float]) -> None:
        self._epochs.log_figures(figures, epoch)

    def on_figures(self, step: int, figures: Mapping[str, float]) -> None:
        self._steps.add_scalars(figures, step)

    def close(self) -> None:
        self._epochs.close()
        self._steps.close()


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
