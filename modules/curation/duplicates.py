"""Finds images that look alike, such as resized or compressed copies, by their perceptual hashes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from modules.curation.measures import ImageMeasures

# Of 64 bits. Copies that were compressed, resized or made a little brighter differ in at most 6, those whose edges were
# cropped by 2 % in at most 8; other images in about 32.
MAX_BITS = 8
# Then the images must also be alike in a few pixels: hashes of images with little in them are alike by chance.
MIN_CORRELATION = 0.94
MAX_DIFFERENCE = 10.0  # of colors, of 255; also of brightness where images are too plain to correlate
PLAIN = 1.0  # standard deviation of the brightness, of 255

# Compressing a photograph changes both by about so much, up or down: then the larger file is the better one.
SHARPNESS_STEP, NOISE_STEP = 0.02, 0.5

_ROWS = 256  # compared with all others at once


# What differs, in words where it is better and where it is worse, and the least difference of terms that is told.
_DIFFERENCES = (
    ("more pixels", "fewer pixels", 1e-9),
    ("sharper", "less sharp", 0.2),
    ("less noise", "more noise", 0.1),
)


class Quality(NamedTuple):
    """What decides which of two images that look alike is the better one.

    num_pixels: of the upright image. num_bytes: of its file. sharpness, noise: as of ImageMeasures.
    """

    num_pixels: int
    sharpness: float
    noise: float
    num_bytes: int

    @property
    def terms(self) -> tuple[float, float, float]:
        """What pixels, sharpness and noise count for; the larger sum is better.

        More pixels count, unless they are not sharp: halving the sharpness outweighs 256 times as many pixels, as it is
        what enlarging does. Noise counts because it looks sharp.
        """
        sharpness = max(1, round(self.sharpness / SHARPNESS_STEP)) * SHARPNESS_STEP
        noise = round(self.noise / NOISE_STEP) * NOISE_STEP
        return math.log2(max(self.num_pixels, 1)), 8 * math.log2(sharpness), -max(0.0, noise - 2) / 4

    @property
    def order(self) -> tuple[float, int]:
        """Sorts the better image to the front."""
        return -sum(self.terms), -self.num_bytes

    def explain(self, other: Quality) -> str:
        """Why it is better or worse than another image, in a few words; "" if nothing of them differs."""
        differences = [one - its for one, its in zip(self.terms, other.terms, strict=True)]
        is_better = self.order <= other.order
        reasons: dict[bool, list[str]] = {True: [], False: []}
        for change, (better, worse, least) in sorted(
            zip(differences, _DIFFERENCES, strict=True), key=lambda pair: -abs(pair[0])
        ):
            if abs(change) >= least:
                reasons[change > 0].append(better if change > 0 else worse)
        if not reasons[is_better] and self.num_bytes != other.num_bytes:
            is_larger = self.num_bytes > other.num_bytes
            reasons[is_larger].append("larger file" if is_larger else "smaller file")
        return ", but ".join(", ".join(reasons[side]) for side in (is_better, not is_better) if reasons[side])


@dataclass(frozen=True)
class Candidate:
    """An image that may have duplicates. num_pixels, num_bytes: as of Quality."""

    path: str
    num_pixels: int
    num_bytes: int
    measures: ImageMeasures

    @property
    def order(self) -> tuple[float, int, str]:
        """Sorts the better image of two that look alike to the front."""
        seen = self.measures
        return *Quality(self.num_pixels, seen.sharpness, seen.noise, self.num_bytes).order, self.path


@dataclass(frozen=True)
class Duplicates:
    """Images that look like `best`, which is the one to keep. others: best first."""

    best: str
    others: tuple[str, ...]


def find_duplicates(images: Sequence[Candidate]) -> list[Duplicates]:
    """The groups of images that look alike, each image in at most one, in the order of their best paths.

    All others of a group look like its best image, not like each other in a chain: a slow pan does not become a group.
    """
    ordered = sorted(images, key=lambda image: image.order)
    alike = _alike([image.measures for image in ordered])
    taken: set[int] = set()
    found = []
    for number in range(len(ordered)):
        if number in taken:
            continue
        others = [other for other in alike.get(number, ()) if other not in taken]
        taken.update(others)
        if others:
            found.append(Duplicates(ordered[number].path, tuple(ordered[other].path for other in others)))
    return sorted(found, key=lambda group: group.best)


def _alike(measures: Sequence[ImageMeasures]) -> Mapping[int, list[int]]:
    """Number of an image -> the numbers behind it that look like it, ascending."""
    found: dict[int, list[int]] = {}
    if not measures:
        return found
    bits = np.array([one.bits for one in measures], np.uint64)
    luma = np.stack([one.luma for one in measures]).astype(np.float32)
    brightness, deviation = luma.mean(1), luma.std(1)
    shape = (luma - brightness[:, None]) / np.maximum(deviation, 1e-6)[:, None]
    is_plain = deviation < PLAIN
    chroma = np.stack([one.chroma for one in measures]).astype(np.float32)
    for start in range(0, len(bits), _ROWS):
        rows = bits[start : start + _ROWS, None]
        near = np.bitwise_count(rows ^ bits[None, start:]) <= MAX_BITS
        firsts, seconds = np.nonzero(near)
        ahead = seconds > firsts
        firsts, seconds = firsts[ahead] + start, seconds[ahead] + start
        is_alike = (shape[firsts] * shape[seconds]).mean(1) >= MIN_CORRELATION
        is_near = np.abs(brightness[firsts] - brightness[seconds]) <= MAX_DIFFERENCE
        is_alike |= is_plain[firsts] & is_plain[seconds] & is_near
        is_alike &= np.abs(chroma[firsts] - chroma[seconds]).mean(1) <= MAX_DIFFERENCE
        for first, second in zip(firsts[is_alike].tolist(), seconds[is_alike].tolist(), strict=True):
            found.setdefault(first, []).append(second)
    return found
