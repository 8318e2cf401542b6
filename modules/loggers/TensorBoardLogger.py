"""Scalars and sample images for TensorBoard."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.loggers.Logger import CLOSE_SECONDS, FileLogger

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardLogger(FileLogger):
    """Logs figures and sample images to `folder`. every_steps: as in Logger."""

    title = "TensorBoard"

    def __init__(self, folder: Path, every_steps: int = 1):
        super().__init__(every_steps)
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        if figures:
            self.attempt(self._write, partial(_add_scalars, figures, step), step)

    def log_samples(self, folder: Path, step: int) -> None:
        for path in sorted(folder.glob("*.png")):
            self.attempt(self._write, partial(_add_image, path, step), step)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        if self._writer is not None:
            self.attempt(self._writer.close)

    def _write(self, add: Callable[[SummaryWriter], None], step: int) -> None:
        if self._writer is None:
            # imported with the first step because it takes half a second
            from torch.utils.tensorboard import SummaryWriter

            # purge_step hides what an earlier process logged of steps that a resumed run repeats
            # a name that nobody can guess, so that no link lies in wait for it
            self._writer = SummaryWriter(self._folder, purge_step=step, filename_suffix=f".{secrets.token_hex(4)}")
        add(self._writer)


def _add_scalars(scalars: Mapping[str, float], step: int, writer: SummaryWriter) -> None:
    """Adds all of them as one event; `add_scalar` would write one, and wake the writer's thread, for each."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    _add(writer, [Summary.Value(tag=name, simple_value=float(value)) for name, value in scalars.items()], step)


def _add_image(path: Path, step: int, writer: SummaryWriter) -> None:
    """Adds the file unchanged; `add_image` would encode the pixels again."""
    from PIL import Image
    from tensorboard.compat.proto.summary_pb2 import Summary

    with Image.open(path, formats=("PNG",)) as picture:
        width, height = picture.size
    image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=path.read_bytes())
    _add(writer, [Summary.Value(tag=f"samples/{path.stem}", image=image)], step)


def _add(writer: SummaryWriter, values: list[Any], step: int) -> None:
    from tensorboard.compat.proto.summary_pb2 import Summary

    file_writer: Any = writer._get_file_writer()  # opened again if the writer was closed, as `add_scalar` does
    file_writer.add_summary(Summary(value=values), step)
