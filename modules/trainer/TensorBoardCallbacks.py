"""Scalars for TensorBoard."""

from __future__ import annotations

from pathlib import Path

from modules.session.StepInfo import StepInfo
from modules.session.TrainCallbacks import TrainCallbacks


class TensorBoardCallbacks(TrainCallbacks):
    """Writes loss, learning rates, gradient norm and the method's metrics of each step below `folder`."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._writer = None

    def on_step(self, info: StepInfo) -> None:
        if self._writer is None:
            # imported with the first step, not before: it takes half a second
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self._folder)
        scalars = {"loss": info.loss, "smooth_loss": info.smooth_loss, "grad_norm": info.grad_norm, **info.metrics}
        for name, value in scalars.items():
            if value is not None:
                self._writer.add_scalar(name, value, info.step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
