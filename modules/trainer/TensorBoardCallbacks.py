"""Scalars for TensorBoard."""

from __future__ import annotations

import sys
from pathlib import Path

from modules.session.StepInfo import StepInfo
from modules.session.TrainCallbacks import TrainCallbacks


class TensorBoardCallbacks(TrainCallbacks):
    """Writes loss, learning rates, gradient norm and the method's metrics of each step below `folder`.

    A disk that refuses ends the curves, not the training.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._writer = None
        self._has_failed = False

    def on_step(self, info: StepInfo) -> None:
        if self._has_failed:
            return
        try:
            self._write(info)
        except OSError as error:
            self._has_failed = True
            print(f"TensorBoard's curves end here: {error.strerror or error}.", file=sys.stderr)

    def close(self) -> None:
        if self._writer is not None and not self._has_failed:
            self._writer.close()

    def _write(self, info: StepInfo) -> None:
        if self._writer is None:
            # imported with the first step, not before: it takes half a second
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self._folder)
        scalars = {"loss": info.loss, "smooth_loss": info.smooth_loss, "grad_norm": info.grad_norm, **info.metrics}
        for name, value in scalars.items():
            if value is not None:
                self._writer.add_scalar(name, value, info.step)
