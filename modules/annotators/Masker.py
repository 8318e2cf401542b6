"""What all kinds of maskers have in common: an image and what is wanted of it in, a soft mask out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Click:
    """A place in pixels of the upright image, and whether it is inside of what is wanted."""

    x: float
    y: float
    is_inside: bool = True


@dataclass(frozen=True)
class MaskHint:
    """What is wanted. prompt: words for it; several, separated by commas, are wanted together. clicks: places in it.

    image: what tells the image from any other, so that a second click need not look at it again; "" remembers nothing.
    """

    prompt: str = ""
    clicks: tuple[Click, ...] = ()
    image: str = ""


@dataclass(frozen=True)
class LocalMasker:
    """The model that a masker is made of. path: its folder, or its ONNX file. model_class: of transformers. device,
    dtype: torch's. on_gpu: whether a model that is not torch's may use a GPU."""

    path: Path
    model_class: str = ""
    device: Any = None
    dtype: Any = None
    on_gpu: bool = False


class Masker(ABC):
    """A model that is loaded. Files of `maskers` have a subclass, called MASKER, made of a LocalMasker."""

    @abstractmethod
    def mask(self, image: Image.Image, hint: MaskHint) -> np.ndarray:
        """float32[H, W] in 0..1, in the size of the RGB image: how sure it is of each pixel."""
