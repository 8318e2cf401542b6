"""The alpha channel of the image itself: what is opaque is the mask."""

from __future__ import annotations

import numpy as np

from modules.data.errors import ImageError
from modules.data.images import load_alpha, may_be_transparent


def alpha_mask(path: str) -> np.ndarray:
    """float32[H, W] in 0..1. Raises ImageError, also if the image has no transparency."""
    if not may_be_transparent(path):
        raise ImageError(path, "it has no alpha channel")
    return np.asarray(load_alpha(path), np.float32) / 255
