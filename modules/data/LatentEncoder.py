"""Pictures to latents, as many at once as the GPU's memory holds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from modules.data.errors import DataError
from modules.weights.device_memory import fits_in_memory

if TYPE_CHECKING:
    from torch import Tensor, nn

    from modules.families.Family import Family

# Of all pictures that are encoded at once, if these are not larger themselves. In float32 a VAE takes about 2 KiB for
# each pixel, so that this is 2 GiB.
PIXELS_AT_ONCE = 2**20


class LatentEncoder:
    """Encodes pictures by `vae`; where the GPU's memory is too small, fewer at once, down to one picture in tiles.

    What did not fit once is not tried again. Tiles give nearly the same latents: each sees only its own part of the
    picture, so they are blended where they overlap.
    """

    def __init__(self, family: Family, vae: nn.Module):
        self._family = family
        self._vae = vae
        self._pixels_at_once = PIXELS_AT_ONCE
        self._tiled_from = math.inf  # pixels of a picture

    def encode(self, pixels_BCHW: Tensor) -> Tensor:
        """Normalised latents of pictures in [-1, 1], in order. Raises DataError where a single one is too large."""
        import torch

        latents: list[Tensor] = []
        done = 0
        while done < len(pixels_BCHW):
            count = max(1, self._pixels_at_once // _size(pixels_BCHW))
            portion = pixels_BCHW[done : done + count]
            if fits_in_memory(partial(self._encode, portion, latents), self._vae.device):
                done += len(portion)
            else:
                self._take_less(portion)
        return torch.cat(latents)

    def _encode(self, pixels_BCHW: Tensor, latents: list[Tensor]) -> None:
        import torch

        from modules.families.latents import encode_pixels

        is_tiled = _size(pixels_BCHW) >= self._tiled_from
        with torch.no_grad(), _tiled(self._vae) if is_tiled else nullcontext():
            latents.append(encode_pixels(self._family, self._vae, pixels_BCHW))

    def _take_less(self, pixels_BCHW: Tensor) -> None:
        """After `pixels_BCHW` did not fit."""
        size = _size(pixels_BCHW)
        if len(pixels_BCHW) > 1:
            self._pixels_at_once = len(pixels_BCHW) // 2 * size
        elif size < self._tiled_from:
            self._tiled_from = size
        else:
            height, width = pixels_BCHW.shape[-2:]
            raise DataError(
                f"The GPU's memory is too small to encode a picture of {width} x {height} pixels, even in tiles: lower "
                "data.resolution, set model.weight_dtype to bfloat16, or close other programs that use the GPU."
            )


def _size(pixels_BCHW: Tensor) -> int:
    """The pixels of each picture."""
    return pixels_BCHW.shape[-2] * pixels_BCHW.shape[-1]


@contextmanager
def _tiled(vae: nn.Module) -> Iterator[None]:
    vae.enable_tiling()
    try:
        yield
    finally:
        vae.disable_tiling()  # samples and saved models are made without
