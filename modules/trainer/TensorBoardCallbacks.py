"""Scalars and sample images for TensorBoard."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.session.printing import print_line
from modules.session.StepInfo import StepInfo
from modules.session.TrainCallbacks import TrainCallbacks

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardCallbacks(TrainCallbacks):
    """Logs each step's loss, learning rates, gradient norm, speed and metrics to `folder`, as well as the validation
    loss and the samples of all ranks.

    If the disk fails, logging stops and training continues.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._writer: SummaryWriter | None = None
        self._has_failed = False

    def on_step(self, info: StepInfo) -> None:
        scalars = {"loss": info.loss, "smooth_loss": info.smooth_loss, "grad_norm": info.grad_norm, **info.metrics}
        scalars["train/samples_per_sec"] = info.samples / info.seconds if info.seconds else None
        self.add_scalars(scalars, info.step)

    def on_validation(self, step: int, samples: int, loss: float, ema_loss: float | None) -> None:
        self.add_scalars({"validation/loss": loss, "validation/ema_loss": ema_loss}, step)

    def on_samples(self, folder: str | Path, step: int) -> None:
        for path in sorted(Path(folder).glob("*.png")):
            self._try(partial(_add_image, path, step), step)

    def add_scalars(self, scalars: Mapping[str, float | None], step: int) -> None:
        """Logs values by name; None is left out. step: the x-axis, whatever it counts."""
        self._try(partial(_add_scalars, scalars, step), step)

    def close(self) -> None:
        if self._writer is not None and not self._has_failed:
            with self._stopping_on_error():
                self._writer.close()

    def _try(self, write: Callable[[SummaryWriter], None], step: int) -> None:
        if self._has_failed:
            return
        with self._stopping_on_error():
            if self._writer is None:
                # imported with the first step because it takes half a second
                from torch.utils.tensorboard import SummaryWriter

                # purge_step hides what an earlier process logged of steps that a resumed run repeats
                # a name that nobody can guess, so that no link lies in wait for it
                self._writer = SummaryWriter(self._folder, purge_step=step, filename_suffix=f".{secrets.token_hex(4)}")
            write(self._writer)

    @contextlib.contextmanager
    def _stopping_on_error(self) -> Iterator[None]:
        """Inside, an OSError stops the logging."""
        try:
            yield
        except OSError as error:
            self._has_failed = True
            print_line(f"TensorBoard logging stops: {error.strerror or error}.", sys.stderr)


def _add_scalars(scalars: Mapping[str, float | None], step: int, writer: SummaryWriter) -> None:
    for name, value in scalars.items():
        if value is not None:
            writer.add_scalar(name, value, step)


def _add_image(path: Path, step: int, writer: SummaryWriter) -> None:
    """Adds the file unchanged; `add_image` would encode the pixels again."""
    from PIL import Image
    from tensorboard.compat.proto.summary_pb2 import Summary

    with Image.open(path, formats=("PNG",)) as picture:
        width, height = picture.size
    image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=path.read_bytes())
    value = Summary.Value(tag=f"samples/{path.stem}", image=image)
    file_writer: Any = writer.file_writer  # its type is inferred from the None that it is before the writer opens
    file_writer.add_summary(Summary(value=[value]), step)
