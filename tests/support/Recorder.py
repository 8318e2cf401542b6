"""Callbacks that remember what they were told."""

from __future__ import annotations

from pathlib import Path

from modules.session.StepInfo import StepInfo
from modules.session.TrainCallbacks import TrainCallbacks


class Recorder(TrainCallbacks):
    def __init__(self):
        self.steps: list[StepInfo] = []
        self.statuses: list[str] = []
        self.warnings: list[str] = []
        self.validations: list[tuple[int, int, float, float | None]] = []
        self.samples: list[Path] = []
        self.rounds: list[tuple[Path, int]] = []
        self.saved: list[Path] = []
        self.backups: list[tuple[Path, int]] = []

    def on_status(self, text: str) -> None:
        self.statuses.append(text)

    def on_waiting(self, text: str) -> None:
        self.statuses.append(text)

    def on_progress(self, text: str, done: int, total: int) -> None:
        self.statuses.append(f"{text}: {done} of {total}")

    def on_step(self, info: StepInfo) -> None:
        self.steps.append(info)

    def on_validation(self, step: int, samples: int, loss: float | None, ema_loss: float | None) -> None:
        self.validations.append((step, samples, loss, ema_loss))

    def on_sample(self, path, prompt: str, step: int) -> None:
        self.samples.append(Path(path))

    def on_samples(self, folder, step: int) -> None:
        self.rounds.append((Path(folder), step))

    def on_backup(self, path, step: int) -> None:
        self.backups.append((Path(path), step))

    def on_saved(self, path, step: int) -> None:
        self.saved.append(Path(path))

    def on_warning(self, text: str) -> None:
        self.warnings.append(text)

    @property
    def losses(self) -> list[float | None]:
        return [info.loss for info in self.steps]
