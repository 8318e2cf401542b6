"""Pixels into models and masks out of them, without transformers' own preparation, which needs torchvision for some."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def normalized(image: Image.Image, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """float32[1, 3, H, W] of an RGB image. mean, std: of its values in 0..1, by channel."""
    values = (np.asarray(image, np.float32) / 255 - np.asarray(mean, np.float32)) / np.asarray(std, np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


def resized(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A mask float32[H, W] in another size, which is width and height in pixels."""
    image = Image.fromarray(mask.astype(np.float32))
    return np.asarray(image.resize(size, Image.Resampling.BILINEAR)).clip(0, 1)
