"""Which way the ball of the video demo moves, seen in the frames."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from scripts.make_video_demo import BACKGROUND, DIRECTIONS, TRAVEL

SEEN = 60  # of 255, by which a pixel of a ball differs from the background
FEWEST = 20  # pixels of a ball, which has about 80


def direction_of(frames: Sequence[Image.Image]) -> str | None:
    """The name of the direction; None if there is not one ball that moves straight for half of its way at least."""
    centers = [_center(frame) for frame in frames]
    if any(center is None for center in centers):
        return None
    x, y = np.subtract(centers[-1], centers[0])
    for name, (right, down) in DIRECTIONS.items():
        along, aside = x * right + y * down, abs(x * down) + abs(y * right)
        if along > TRAVEL / 2 and aside < TRAVEL / 4:
            return name
    return None


def _center(frame: Image.Image) -> tuple[float, float] | None:
    difference = np.abs(np.asarray(frame, float) - BACKGROUND).max(axis=2)
    rows, columns = np.nonzero(difference > SEEN)
    return (columns.mean(), rows.mean()) if len(rows) >= FEWEST else None
