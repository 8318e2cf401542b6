"""Callbacks that become lines of the run folder's event file."""

from pathlib import Path

from modules.session.events import EventWriter
from modules.session.StepInfo import StepInfo
from modules.session.TrainCallbacks import TrainCallbacks


class EventCallbacks(TrainCallbacks):
    """Writes every call to `writer`, which stays the caller's to close. docs/run_folder.md lists the fields."""

    def __init__(self, writer: EventWriter):
        self.writer = writer

    def on_status(self, text: str) -> None:
        self.writer.emit("status", text=text)

    def on_step(self, info: StepInfo) -> None:
        self.writer.emit(
            "step",
            epoch=info.epoch,
            step=info.step,
            steps_total=info.steps_total,
            loss=info.loss,
            smooth_loss=info.smooth_loss,
            lr=info.lr,
            samples=info.samples,
            seconds=info.seconds,
            grad_norm=info.grad_norm,
            data_seconds=info.data_seconds,
            device=info.device,
            memory_bytes=info.memory_bytes,
            peak_memory_bytes=info.peak_memory_bytes,
        )

    def on_validation(self, step: int, samples: int, loss: float, ema_loss: float | None) -> None:
        self.writer.emit("validation", step=step, samples=samples, loss=loss, ema_loss=ema_loss)

    def on_sample(self, path: str | Path, prompt: str, step: int) -> None:
        self.writer.emit("sample", path=path, prompt=prompt, step=step)

    def on_samples(self, folder: str | Path, step: int) -> None:
        self.writer.emit("samples", path=folder, step=step)

    def on_backup(self, path: str | Path, step: int) -> None:
        self.writer.emit("backup", path=path, step=step)

    def on_saved(self, path: str | Path, step: int) -> None:
        self.writer.emit("saved", path=path, step=step)

    def on_warning(self, text: str) -> None:
        self.writer.emit("warning", text=text)

    def on_failed(self, text: str) -> None:
        self.writer.emit("failed", text=text)

    def on_finished(self, step: int) -> None:
        self.writer.emit("finished", step=step)
