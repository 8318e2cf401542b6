"""Pictures in the size in which the window shows them. Pillow only; made for threads."""

from __future__ import annotations

import time
from collections.abc import Sequence

from PIL import Image

from modules.data.errors import ImageError
from modules.data.images import load_image

# path, and the width and height in pixels that its picture has to fit in
PictureKey = tuple[str, int, int]

MAX_BATCH = 16  # pictures handed over at once: making a Tk image of 128 x 128 pixels takes some 0.2 ms
BATCH_SECONDS = 0.1  # of decoding, after which what is ready is shown
PIXELATED_FROM = 2  # pictures enlarged this much show their pixels as squares


def decode_pictures(keys: Sequence[PictureKey]) -> list[tuple[PictureKey, Image.Image | str]]:
    """As many of `keys` as are decoded in BATCH_SECONDS, at least one; a picture that can't be read as the reason."""
    end = time.monotonic() + BATCH_SECONDS
    decoded: list[tuple[PictureKey, Image.Image | str]] = []
    for key in keys[:MAX_BATCH]:
        try:
            decoded.append((key, fit_inside(load_image(key[0], at_least=key[1:]), *key[1:])))
        except ImageError as error:
            decoded.append((key, error.reason))
        if time.monotonic() > end:
            break
    return decoded


def fit_inside(image: Image.Image, width: int, height: int) -> Image.Image:
    """`image` as large as fits into width x height pixels; a small one is enlarged to squares for its pixels."""
    factor = min(width / image.width, height / image.height)
    if factor >= PIXELATED_FROM:
        return image.resize((image.width * int(factor), image.height * int(factor)), Image.Resampling.NEAREST)
    if factor >= 1:
        return image
    size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    return image.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)
