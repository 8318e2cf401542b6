"""What an image is like, measured on its pixels: how sharp and how noisy it is, and what tells near-duplicates.

All of it is measured on the upright image, reduced to the area of `SIDE` x `SIDE` pixels, which is about what training
sees: a photograph is as sharp in every size that it is saved in, and grain that resizing removes is no noise.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from modules.data.images import load_image, read_orientation

VERSION = 1  # of the figures; to be increased whenever the same image is measured differently

# Found with photographs that were blurred by a Gaussian of 1, 2 and 4 pixels at SIDE: they have a sharpness of 0.63 to
# 0.70, 0.41 to 0.48 and 0.25 to 0.30, as against 0.75 to 0.86 of the originals. One that was enlarged 4 times has 0.42
# to 0.55, one of which only the subject is sharp 0.65 to 0.78.
BLURRED = 0.55
NOISY = 8.0  # grain that is plainly seen; photographs in daylight are below 1, small ones full of texture below 7

SIDE = 512
_TILES = 8  # along each side
_SMALLEST_TILE = 16  # pixels of a side
_REBLUR = 4  # radius in pixels, for `_sharpness`
_FLAT = 0.3  # mean difference between neighbors, of 255, up to which a tile has nothing that could be sharp
_CLIPPED = 8  # a tile so near to black or white hides its noise
_SHARPEST, _SMOOTHEST = 0.9, 0.1  # quantiles of the tiles that decide

_HASHED, _FREQUENCIES = 32, 8
_LUMA, _CHROMA = 12, 3  # pixels of a side


@dataclass(frozen=True)
class ImageMeasures:
    """sharpness: 0 to 1, below BLURRED for a blurred image. noise: the standard deviation of its grain, of 255.

    orientation: its tag as of EXIF, by which it is turned; 1 for none. bits: a perceptual hash of 64 bits.
    luma, chroma: uint8, of the image in a few pixels, by which similar hashes are compared again.
    """

    sharpness: float
    noise: float
    orientation: int
    bits: int
    luma: np.ndarray
    chroma: np.ndarray

    @property
    def is_blurred(self) -> bool:
        return self.sharpness < BLURRED

    @property
    def is_noisy(self) -> bool:
        return self.noise > NOISY

    def to_values(self) -> list[Any]:
        """What `of_values` takes, for JSON."""
        small = base64.b85encode(np.concatenate([self.luma, self.chroma]).tobytes()).decode()
        return [round(self.sharpness, 4), round(self.noise, 3), self.orientation, f"{self.bits:016x}", small]

    @classmethod
    def of_values(cls, values: list[Any]) -> ImageMeasures:
        """Raises ValueError or TypeError for anything but the result of `to_values`."""
        sharpness, noise, orientation, bits, small = values
        pixels = np.frombuffer(base64.b85decode(small), np.uint8)
        luma, chroma = pixels[: _LUMA**2], pixels[_LUMA**2 :]
        if len(chroma) != 2 * _CHROMA**2:
            raise ValueError(f"{len(pixels)} pixels")
        return cls(float(sharpness), float(noise), int(orientation), int(bits, 16), luma, chroma)


def measure(path: str) -> ImageMeasures:
    """The measures of the image at `path`. Raises ImageError if it can't be decoded."""
    return measure_image(load_image(path, at_least=(SIDE, SIDE)), read_orientation(path))


def measure_image(image: Image.Image, orientation: int = 1) -> ImageMeasures:
    """The measures of an upright RGB image. orientation: of its file."""
    gray = _reduced(image.convert("L"))
    pixels = np.asarray(gray, np.float32)
    colors = image.convert("YCbCr")
    luma = np.asarray(gray.resize((_LUMA, _LUMA), Image.Resampling.BOX)).ravel()
    chroma = np.asarray(colors.resize((_CHROMA, _CHROMA), Image.Resampling.BOX))[..., 1:].ravel()
    return ImageMeasures(_sharpness(gray, pixels), _noise(pixels), orientation, _bits(gray), luma, chroma)


def _reduced(gray: Image.Image) -> Image.Image:
    scale = SIDE / math.sqrt(gray.width * gray.height)
    if scale >= 1:
        return gray
    size = max(1, round(gray.width * scale)), max(1, round(gray.height * scale))
    return gray.resize(size, Image.Resampling.LANCZOS)


def _sharpness(gray: Image.Image, pixels: np.ndarray) -> float:
    """How much of the differences between neighbors a further blur would take away, where the image is sharpest.

    A blurred image hardly changes when it is blurred again, whatever its contrast is; of an image whose background is
    out of focus on purpose, the subject counts. 0 for an image without any detail.
    Source: Crété-Roffet et al. 2007, "The blur effect", SPIE 6492, here for each tile.
    """
    height, width = pixels.shape
    if min(height, width) < 2:
        return 0.0
    lost, energy = [], np.zeros(())
    for axis, radius in ((1, (_REBLUR, 0)), (0, (0, _REBLUR))):
        blurred = np.asarray(gray.filter(ImageFilter.BoxBlur(radius)), np.float32)
        before, after = (np.abs(np.diff(values, axis=axis))[: height - 1, : width - 1] for values in (pixels, blurred))
        differences = _tiles(before).mean(1)
        taken = _tiles(np.maximum(before - after, 0)).mean(1)
        lost.append(taken / np.maximum(differences, 1e-6))
        energy = energy + differences
    # of both directions the less sharp one: camera shake blurs one alone
    sharp = np.minimum(*lost)[energy > _FLAT]
    return float(np.quantile(sharp, _SHARPEST)) if len(sharp) else 0.0


def _noise(pixels: np.ndarray) -> float:
    """The standard deviation of the noise, of 255, where the image is smoothest; 0 if all of it is black or white.

    Source: Immerkær 1996, "Fast noise variance estimation", Computer Vision and Image Understanding 64(2), here for
    each tile, because texture would count as noise.
    """
    if min(pixels.shape) < 3:
        return 0.0
    rows = pixels[2:] - 2 * pixels[1:-1] + pixels[:-2]
    second = rows[:, 2:] - 2 * rows[:, 1:-1] + rows[:, :-2]
    deviation = np.abs(_tiles(second)).mean(1) * math.sqrt(math.pi / 2) / 6
    means = _tiles(pixels[1:-1, 1:-1]).mean(1)
    seen = deviation[(means > _CLIPPED) & (means < 255 - _CLIPPED)]
    return float(np.quantile(seen, _SMOOTHEST)) if len(seen) else 0.0


def _tiles(values: np.ndarray) -> np.ndarray:
    """The pixels of each tile, [tiles, pixels]; those beyond the last whole one are left out."""
    height, width = values.shape
    tile_h, tile_w = (min(side, max(side // _TILES, _SMALLEST_TILE)) for side in (height, width))
    whole = values[: height // tile_h * tile_h, : width // tile_w * tile_w]
    grid = whole.reshape(height // tile_h, tile_h, width // tile_w, tile_w)
    return grid.transpose(0, 2, 1, 3).reshape(-1, tile_h * tile_w)


def _bits(gray: Image.Image) -> int:
    """Whether each of the lowest 64 frequencies of the image is above their median: the hash known as pHash."""
    small = np.asarray(gray.resize((_HASHED, _HASHED), Image.Resampling.LANCZOS), np.float32)
    cosines = _cosines()
    frequencies = (cosines @ small @ cosines.T).ravel()
    frequencies[0] = 0.0  # the brightness of the whole
    frequencies[np.abs(frequencies) < 1] = 0.0  # rounding
    above = frequencies > np.median(frequencies)
    return int.from_bytes(np.packbits(above).tobytes(), "big")


@cache
def _cosines() -> np.ndarray:
    """The first rows of the discrete cosine transform of `_HASHED` values."""
    places = (2 * np.arange(_HASHED) + 1) * np.pi / (2 * _HASHED)
    return np.cos(np.arange(_FREQUENCIES)[:, None] * places).astype(np.float32)
