"""Scalars and sample pictures for TensorBoard."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from modules.session.printing import print_line
from modules.session.StepInfo import StepInfo
from modules.session.TrainCallbacks import TrainCallbacks


class TensorBoardCallbacks(TrainCallbacks):
    """Writes loss, learning rates, gradient norm, speed and the method's metrics of each step below `folder`, the
    validation loss and the samples of all ranks.

    A disk that refuses ends the curves, not the training.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._writer = None
        self._has_failed = False

    def on_step(self, info: StepInfo) -> None:
        scalars = {"loss": info.loss, "smooth_loss": info.smooth_loss, "grad_norm": info.grad_norm, **info.metrics}
        scalars["train/samples_per_sec"] = info.samples / info.seconds if info.seconds else None
        self._try(lambda: self._add_scalars(scalars, info.step), info.step)

    def on_validation(self, step: int, samples: int, loss: float, ema_loss: float | None) -> None:
        self._try(lambda: self._add_scalars({"validation/loss": loss, "validation/ema_loss": ema_loss}, step), step)

    def on_samples(self, folder: str | Path, step: int) -> None:
        for path in sorted(Path(folder).glob("*.png")):
            self._try(lambda path=path: self._add_picture(path, step), step)

    def close(self) -> None:
        if self._writer is not None and not self._has_failed:
            with self._ending_curves():
                self._writer.close()

    def _try(self, write: Callable[[], None], step: int) -> None:
        if self._has_failed:
            return
        with self._ending_curves():
            if self._writer is None:
                # imported with the first step, not before: it takes half a second
                from torch.utils.tensorboard import SummaryWriter

                # purge_step: what an earlier process wrote of the steps that a resumed run does again is not shown
                self._writer = SummaryWriter(self._folder, purge_step=step)
            write()

    @contextlib.contextmanager
    def _ending_curves(self) -> Iterator[None]:
        """Inside, a disk that refuses is the end of the curves."""
        try:
            yield
        except OSError as error:
            self._has_failed = True
            print_line(f"TensorBoard's curves end here: {error.strerror or error}.", sys.stderr)

    def _add_scalars(self, scalars: dict[str, float | None], step: int) -> None:
        for name, value in scalars.items():
            if value is not None:
                self._writer.add_scalar(name, value, step)

    def _add_picture(self, path: Path, step: int) -> None:
        """The file as it is: `add_image` would encode the pixels a second time."""
        from PIL import Image
        from tensorboard.compat.proto.summary_pb2 import Summary

        with Image.open(path) as picture:
            width, height = picture.size
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=path.read_bytes())
        value = Summary.Value(tag=f"samples/{path.stem}", image=image)
        self._writer.file_writer.add_summary(Summary(value=[value]), step)
