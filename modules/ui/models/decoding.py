"""Decode images at the size in which the window shows them, of videos the first frame; for use in threads."""

from __future__ import annotations

import time
from collections.abc import Sequence

from PIL import Image

from modules.data.errors import ImageError
from modules.data.videos import load_still

# path, and the maximum width and height of the image in pixels
PictureKey = tuple[str, int, int]

MAX_BATCH = 16  # images handed over at once: creating a Tk image of 128 x 128 pixels takes about 0.2 ms
BATCH_SECONDS = 0.1  # of decoding, after which the images ready so far are shown
PIXELATED_FROM = 2  # images enlarged this much show their pixels as squares


def decode_pictures(keys: Sequence[PictureKey]) -> list[tuple[PictureKey, Image.Image | str]]:
    """As many of `keys` as can be decoded in BATCH_SECONDS, at least one; for an unreadable image the reason."""
    end = time.monotonic() + BATCH_SECONDS
    decoded: list[tuple[PictureKey, Image.Image | str]] = []
    for key in keys[:MAX_BATCH]:
        try:
            decoded.append((key, fit_inside(load_still(key[0], at_least=key[1:]), *key[1:])))
        except ImageError as error:
            decoded.append((key, error.reason))
        if time.monotonic() > end:
            break
    return decoded


def fit_inside(image: Image.Image, width: int, height: int) -> Image.Image:
    """`image` scaled to fit into width x height pixels; a small one is enlarged with visible square pixels."""
    factor = min(width / image.width, height / image.height)
    if factor >= PIXELATED_FROM:
        return image.resize((image.width * int(factor), image.height * int(factor)), Image.Resampling.NEAREST)
    if factor >= 1:
        return image
    size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    return image.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)
