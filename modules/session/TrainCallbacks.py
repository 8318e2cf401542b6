"""What a training tells the outside: the calls, and a list that passes them on to several listeners."""

from collections.abc import Iterable
from pathlib import Path

from modules.session.StepInfo import StepInfo


class TrainCallbacks:
    """Listener of a training; override what is of interest. The training waits for each call, so return quickly."""

    def on_status(self, text: str) -> None:
        """A new phase began, such as loading or caching."""

    def on_step(self, info: StepInfo) -> None:
        """An optimizer step is done."""

    def on_validation(self, step: int, samples: int, loss: float, ema_loss: float | None) -> None:
        """The mean loss of the `samples` held-out ones after `step` steps; ema_loss: with the averaged weights."""

    def on_sample(self, path: str | Path, prompt: str, step: int) -> None:
        """A sample of `prompt` was written to `path`."""

    def on_samples(self, folder: str | Path, step: int) -> None:
        """All ranks have made their samples of `step`; they are below `folder`."""

    def on_backup(self, path: str | Path, step: int) -> None:
        """A backup is complete at `path`."""

    def on_saved(self, path: str | Path, step: int) -> None:
        """The model was saved to `path`."""

    def on_warning(self, text: str) -> None:
        """Something is wrong but the training goes on."""

    def on_failed(self, text: str) -> None:
        """The training ends early, for the reason in `text`."""

    def on_finished(self, step: int) -> None:
        """The training ended as planned, or as asked, after `step` steps."""


class CallbackList(TrainCallbacks):
    """Passes every call on to each of `listeners`, in their order."""

    def __init__(self, listeners: Iterable[TrainCallbacks]):
        self.listeners = list(listeners)

    def on_status(self, text: str) -> None:
        for listener in self.listeners:
            listener.on_status(text)

    def on_step(self, info: StepInfo) -> None:
        for listener in self.listeners:
            listener.on_step(info)

    def on_validation(self, step: int, samples: int, loss: float, ema_loss: float | None) -> None:
        for listener in self.listeners:
            listener.on_validation(step, samples, loss, ema_loss)

    def on_sample(self, path: str | Path, prompt: str, step: int) -> None:
        for listener in self.listeners:
            listener.on_sample(path, prompt, step)

    def on_samples(self, folder: str | Path, step: int) -> None:
        for listener in self.listeners:
            listener.on_samples(folder, step)

    def on_backup(self, path: str | Path, step: int) -> None:
        for listener in self.listeners:
            listener.on_backup(path, step)

    def on_saved(self, path: str | Path, step: int) -> None:
        for listener in self.listeners:
            listener.on_saved(path, step)

    def on_warning(self, text: str) -> None:
        for listener in self.listeners:
            listener.on_warning(text)

    def on_failed(self, text: str) -> None:
        for listener in self.listeners:
            listener.on_failed(text)

    def on_finished(self, step: int) -> None:
        for listener in self.listeners:
            listener.on_finished(step)
