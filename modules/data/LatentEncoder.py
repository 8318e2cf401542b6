"""Encodes images to latents in batches as large as GPU memory allows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from modules.data.errors import DataError
from modules.data.prefetch import prefetch
from modules.layers.device_memory import fits_in_memory

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from torch import Tensor

    from modules.families.Family import Family

# Pixels of a batch, unless a single image has more. A VAE in float32 needs about 2 KiB per pixel, so this is 2 GiB.
PIXELS_AT_ONCE = 2**20
FRAMES_AHEAD = 8  # of a clip, decoded while those before are encoded


class LatentEncoder:
    """Encodes images and clips with `vae`. If GPU memory runs out, batches are halved, down to a single one in tiles.

    A size that did not fit is not tried again. Tiled latents differ slightly, because each tile is encoded without its
    surroundings and blended where tiles overlap.
    pipe: with the components that the family's conditions are encoded with, if there are some.
    """

    def __init__(self, family: Family, vae: ModelMixin, pipe: DiffusionPipeline | None = None):
        self.family = family
        self.pipe = pipe
        self.vae = vae
        self._device = vae.device
        self._pixels_at_once = PIXELS_AT_ONCE
        self._tiled_from = math.inf  # pixels per image
        self._tiles_clips = False

    def encode(self, pixels_BCHW: Tensor) -> Tensor:
        """Normalized latents of images in [-1, 1], in order. Raises DataError if a single image is too large."""
        import torch

        latents: list[Tensor] = []
        done = 0
        while done < len(pixels_BCHW):
            count = max(1, self._pixels_at_once // _size(pixels_BCHW))
            portion = pixels_BCHW[done : done + count]
            if fits_in_memory(partial(self._encode, portion, latents), self._device):
                done += len(portion)
            else:
                self._take_less(portion)
        return torch.cat(latents)

    def encode_clip(self, frames: Callable[[], Iterator[np.ndarray]]) -> Tensor:
        """Normalized latents of a clip, [C, F, h, w], without holding all of its frames where the VAE allows that.

        frames: yields them as float32[3, H, W] in [-1, 1]; it is called again if memory runs out.
        Raises ImageError if a frame can't be read, and DataError if the clip is too large.
        """
        import torch

        latents: list[Tensor] = []
        if not self._tiles_clips and fits_in_memory(partial(self._encode_pieces, frames, latents), self._device):
            return latents[0]
        self._tiles_clips = True
        whole = torch.cat(list(_pieces(frames(), self.family.frame_step)), 2)
        self._tiled_from = min(self._tiled_from, _size(whole))
        return self.encode(whole)[0]

    def _encode_pieces(self, frames: Callable[[], Iterator[np.ndarray]], latents: list[Tensor]) -> None:
        import torch

        from modules.families.latents import encode_pieces

        with torch.no_grad(), closing(prefetch(frames(), FRAMES_AHEAD)) as decoded:
            pieces = _pieces(decoded, self.family.frame_step)
            latents.append(encode_pieces(self.family, self.vae, pieces)[0])

    def _encode(self, pixels_BCHW: Tensor, latents: list[Tensor]) -> None:
        import torch

        from modules.families.latents import encode_pixels

        is_tiled = _size(pixels_BCHW) >= self._tiled_from
        with torch.no_grad(), _tiled(self.vae) if is_tiled else nullcontext():
            latents.append(encode_pixels(self.family, self.vae, pixels_BCHW))

    def _take_less(self, pixels_BCHW: Tensor) -> None:
        """Lowers the limits after `pixels_BCHW` did not fit in memory."""
        size = _size(pixels_BCHW)
        if len(pixels_BCHW) > 1:
            self._pixels_at_once = len(pixels_BCHW) // 2 * size
        elif size < self._tiled_from:
            self._tiled_from = size
        else:
            height, width = pixels_BCHW.shape[-2:]
            is_clip = pixels_BCHW.ndim == 5
            what = f"a clip of {pixels_BCHW.shape[2]} frames" if is_clip else "an image"
            lower = "data.frames or data.resolution" if is_clip else "data.resolution"
            raise DataError(
                f"There is not enough GPU memory to encode {what} of {width} x {height} pixels, even in tiles: lower "
                f"{lower}, set model.weight_dtype to bfloat16, or close other programs that use the GPU."
            )


def _size(pixels_BCHW: Tensor) -> int:
    """Pixels per image or clip."""
    return pixels_BCHW[0, 0].numel()


def _pieces(frames: Iterator[np.ndarray], size: int) -> Iterator[Tensor]:
    """[1, 3, f, H, W]: the first frame, then `size` frames each."""
    import torch

    for number in itertools.count():
        piece = list(itertools.islice(frames, size if number else 1))
        if not piece:
            return
        yield torch.from_numpy(np.stack(piece, axis=1))[None]


@contextmanager
def _tiled(vae: ModelMixin) -> Iterator[None]:
    had_tiles = getattr(vae, "use_tiling", False)
    vae.enable_tiling()
    try:
        yield
    finally:
        if not had_tiles:
            vae.disable_tiling()  # sampling uses the same VAE, without tiles
