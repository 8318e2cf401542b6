"""The sizes in which models see reference images, where these do not depend on the size of the image to be made."""

from __future__ import annotations

import math

Size = tuple[int, int]  # width and height in pixels


def size_of_area(area: int, aspect: float, step: int = 32) -> Size:
    """The size of about `area` pixels with about this aspect ratio, in the nearest multiples of `step`.

    aspect: width divided by height.
    """
    width = math.sqrt(area * aspect)
    return _nearest(width, step), _nearest(width / aspect, step)


def size_of_denoiser(aspect: float) -> None:
    """For text encoders that see a reference in the size in which the denoiser does; aspect: of any image."""


def _nearest(side: float, step: int) -> int:
    return max(1, round(side / step)) * step
