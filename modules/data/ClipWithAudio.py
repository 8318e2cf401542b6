"""A sample of a model that makes videos with sound."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL.Image import Image

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, eq=False)
class Audio:
    """waveform: float32[2, samples] in [-1, 1]. rate: samples per second."""

    waveform: np.ndarray
    rate: int


class ClipWithAudio(list[Image]):
    """The frames of a clip, and what is heard as long as they last."""

    def __init__(self, frames: Iterable[Image], audio: Audio):
        super().__init__(frames)
        self.audio = audio
