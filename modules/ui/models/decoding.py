"""Decode images at the size in which the window shows them, of videos the first frame; for use in threads."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from PIL import Image

from modules.data.errors import ImageError
from modules.data.ImageSettings import Crop
from modules.data.videos import is_video, load_still, read_frames, read_info
from modules.ui.models.mask_overlay import with_mask


class PictureKey(NamedTuple):
    """width, height: the maximum of the image, in pixels. mask: as of `with_mask`. version: larger once a file has
    changed, so that it is read again. crop: the part to show, and the size of the image; () for all of it."""

    path: str
    width: int
    height: int
    mask: str = ""
    version: int = 0
    crop: tuple[int, ...] = ()


MAX_BATCH = 16  # images handed over at once: creating a Tk image of 128 x 128 pixels takes about 0.2 ms
BATCH_SECONDS = 0.1  # of decoding, after which the images ready so far are shown
PIXELATED_FROM = 2  # images enlarged this much show their pixels as squares


def decode_pictures(keys: Sequence[PictureKey]) -> list[tuple[PictureKey, Image.Image | str]]:
    """As many of `keys` as can be decoded in BATCH_SECONDS, at least one; for an unreadable image the reason."""
    end = time.monotonic() + BATCH_SECONDS
    decoded: list[tuple[PictureKey, Image.Image | str]] = []
    for key in keys[:MAX_BATCH]:
        try:
            size = key.width, key.height
            if key.crop:
                decoded.append((key, fit_inside(_cropped(key), *size)))
            else:
                image = fit_inside(load_still(key.path, at_least=size), *size)
                decoded.append((key, with_mask(image, key.path, key.mask)))
        except ImageError as error:
            decoded.append((key, error.reason))
        if time.monotonic() > end:
            break
    return decoded


def _cropped(key: PictureKey) -> Image.Image:
    """The part of an image, with its mask, in at least the size of the key. Raises ImageError."""
    x, y, width, height, *whole = key.crop
    at_least = -(-key.width * whole[0] // width), -(-key.height * whole[1] // height)
    image = with_mask(load_still(key.path, at_least), key.path, key.mask)
    return Crop(x, y, width, height).of(image, (whole[0], whole[1]))


def fit_inside(image: Image.Image, width: int, height: int) -> Image.Image:
    """`image` scaled to fit into width x height pixels; a small one is enlarged with visible square pixels."""
    factor = min(width / image.width, height / image.height)
    if factor >= PIXELATED_FROM:
        return image.resize((image.width * int(factor), image.height * int(factor)), Image.Resampling.NEAREST)
    if factor >= 1:
        return image
    size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    return image.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)


@dataclass(frozen=True)
class View:
    """An image fitted into a view, or why it can't be read. seconds: how long a video lasts; 0 of an image."""

    image: Image.Image | None
    reason: str = ""
    seconds: float = 0.0


def decode_view(
    path: str, width: int, height: int, at: float = 0.0, folder_fps: float | None = None, mask: str = ""
) -> View:
    """The image at `path`, or the frame of a video at `at` seconds, fitted into width x height pixels.

    folder_fps: as in VideoInfo. mask: as of `with_mask`.
    """
    try:
        seconds = read_info(path, folder_fps).seconds if is_video(path) else 0.0
        if os.path.isdir(path):
            last = max(0.0, seconds - 1 / (folder_fps or 1.0))
            image = next(read_frames(path, [min(at, last)], folder_fps))
        else:
            image = load_still(path, (width, height), at)
        fitted = with_mask(fit_inside(image, width, height), path, mask)
    except ImageError as error:
        return View(None, error.reason)
    return View(fitted, seconds=seconds)
