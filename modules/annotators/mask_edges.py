"""From how sure a model is of each pixel to the mask that is saved: threshold, invert, grow, feather, in this order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageFilter

MAX_PIXELS = 512  # to grow or feather by


@dataclass(frozen=True)
class Edges:
    """threshold: from which value on a pixel belongs to the mask, in 0..1; None keeps soft masks as they are.

    invert: what is not in the mask, in its place. grow: pixels to grow by, in every direction; less than 0 shrinks.
    feather: pixels over which an edge fades, to either side.
    """

    threshold: float | None = 0.5
    invert: bool = False
    grow: int = 0
    feather: int = 0


def finished(soft: np.ndarray, edges: Edges) -> Image.Image:
    """The mask as 8-bit gray: white is learned. soft: float32[H, W] in 0..1."""
    values = soft if edges.threshold is None else (soft >= edges.threshold).astype(np.float32)
    if edges.invert:
        values = 1 - values
    mask = Image.fromarray(np.rint(values.clip(0, 1) * 255).astype(np.uint8))
    mask = _grown(mask, edges.grow)
    # a box of this radius goes from black to white over its width: `feather` to either side
    return mask.filter(ImageFilter.BoxBlur(edges.feather)) if edges.feather else mask


def _grown(mask: Image.Image, pixels: int) -> Image.Image:
    """Grown to a square neighborhood: one axis after the other, which takes time by its side, not by its area."""
    if pixels == 0:
        return mask
    choose = np.maximum if pixels > 0 else np.minimum
    values = np.asarray(mask)
    for axis in (0, 1):
        values = _reaching(values, abs(pixels), axis, choose)
    return Image.fromarray(values)


def _reaching(values: np.ndarray, reach: int, axis: int, choose: np.ufunc) -> np.ndarray:
    """The largest or least value within `reach` along an axis, by windows that double: log2(reach) passes."""
    edge = [(reach, reach) if one == axis else (0, 0) for one in (0, 1)]
    window, length, wanted = np.pad(values, edge, mode="edge"), 1, 2 * reach + 1
    while length < wanted:
        step = min(length, wanted - length)
        window = choose(_cut(window, axis, 0, -step), _cut(window, axis, step, None))
        length += step
    return window


def _cut(values: np.ndarray, axis: int, start: int, stop: int | None) -> np.ndarray:
    return values[start:stop] if axis == 0 else values[:, start:stop]
