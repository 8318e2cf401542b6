"""The callbacks of a training, and a list that forwards them to several listeners."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from modules.session.event_types import (
    BackupEvent,
    Event,
    FailedEvent,
    FinishedEvent,
    ProgressEvent,
    SampleEvent,
    SamplesEvent,
    SavedEvent,
    StartedEvent,
    StatusEvent,
    ValidationEvent,
    WaitingEvent,
    WarningEvent,
)
from modules.session.StepInfo import StepInfo


class TrainCallbacks:
    """Listener of a training. Override the callbacks of interest, or `on_event`, which gets all others.

    The training waits for each callback, so return quickly.
    """

    def on_event(self, event: Event) -> None:
        """Any event below whose own callback is not overridden."""

    def on_started(self, started: float) -> None:
        """The run was started or resumed, at `started` in Unix seconds."""
        self.on_event(StartedEvent(started))

    def on_status(self, text: str) -> None:
        """A new phase began, such as loading or caching."""
        self.on_event(StatusEvent(text))

    def on_waiting(self, text: str) -> None:
        """The training waits for something that a person can provide, such as disk space; repeated while it does."""
        self.on_event(WaitingEvent(text))

    def on_progress(self, text: str, done: int, total: int) -> None:
        """`done` of the `total` items that this rank has to work on are done; text: the activity."""
        self.on_event(ProgressEvent(text, done, total))

    def on_step(self, info: StepInfo) -> None:
        """An optimizer step is done."""
        self.on_event(info)

    def on_validation(self, step: int, samples: int, loss: float | None, ema_loss: float | None) -> None:
        """The mean loss of `samples` held-out samples after `step` steps, None if it is not finite; ema_loss: the same
        with the EMA weights, None without them."""
        self.on_event(ValidationEvent(step, samples, loss, ema_loss))

    def on_epoch(self, epoch: int, figures: Mapping[str, float]) -> None:
        """TrainingEngine has trained epoch `epoch` (from 1); figures: losses, learning rate and metrics by name.

        No event: other trainings don't report epochs.
        """

    def on_figures(self, step: int, figures: Mapping[str, float]) -> None:
        """TrainingEngine has validated after `step` steps, by `validate_every_steps`; figures: as for `on_epoch`.

        train_loss is that since the validation before. No event, like `on_epoch`.
        """

    def on_sample(self, path: str | Path, prompt: str, step: int) -> None:
        """A sample of `prompt` was written to `path`."""
        self.on_event(SampleEvent(path, prompt, step))

    def on_samples(self, folder: str | Path, step: int) -> None:
        """All ranks have written their samples of `step` below `folder`."""
        self.on_event(SamplesEvent(folder, step))

    def on_backup(self, path: str | Path, step: int) -> None:
        """A backup is complete at `path`."""
        self.on_event(BackupEvent(path, step))

    def on_saved(self, path: str | Path, step: int) -> None:
        """The model was saved to `path`."""
        self.on_event(SavedEvent(path, step))

    def on_warning(self, text: str) -> None:
        """Something is wrong, but the training continues."""
        self.on_event(WarningEvent(text))

    def on_failed(self, text: str) -> None:
        """The training ends early, for the reason in `text`."""
        self.on_event(FailedEvent(text))

    def on_finished(self, step: int) -> None:
        """The training ended as planned, or was stopped on request, after `step` steps."""
        self.on_event(FinishedEvent(step))


class CallbackList(TrainCallbacks):
    """Forwards every callback to each of `listeners`, in order."""

    def __init__(self, listeners: Iterable[TrainCallbacks]):
        self.listeners = list(listeners)

    def on_event(self, event: Event) -> None:
        for listener in self.listeners:
            event.tell(listener)

    def on_epoch(self, epoch: int, figures: Mapping[str, float]) -> None:
        for listener in self.listeners:
            listener.on_epoch(epoch, figures)

    def on_figures(self, step: int, figures: Mapping[str, float]) -> None:
        for listener in self.listeners:
            listener.on_figures(step, figures)
