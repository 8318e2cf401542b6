"""Pixels to normalised latents and back.

Legend: B batch, C channels, H W pixels or latent cells.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

    from modules.families.Family import Family


def encode_pixels(family: Family, vae: nn.Module, pixels_BCHW: Tensor) -> Tensor:
    """Normalised latents of pictures in [-1, 1]: the mode of the encoder's distribution, so that a cache is exact."""
    with _safe_from_overflow(vae):
        pixels = pixels_BCHW.to(vae.device, vae.dtype)
        return normalise(family, vae, vae.encode(pixels).latent_dist.mode())


def decode_latents(family: Family, vae: nn.Module, latents_BCHW: Tensor) -> Tensor:
    """Pictures in about [-1, 1] of normalised latents."""
    shift, scale = family.vae_stats(vae)
    return vae.decode((latents_BCHW / scale + shift).to(vae.dtype), return_dict=False)[0]


def normalise(family: Family, vae: nn.Module, raw_BCHW: Tensor) -> Tensor:
    shift, scale = family.vae_stats(vae)
    return (raw_BCHW - shift) * scale


@contextlib.contextmanager
def _safe_from_overflow(vae: nn.Module) -> Iterator[None]:
    """Inside, a VAE in float16 computes in float32 if its config asks for it: the activations of SDXL's overflow."""
    import torch

    if vae.dtype != torch.float16 or not vae.config.get("force_upcast"):
        yield
        return
    vae.to(torch.float32)
    try:
        yield
    finally:
        vae.to(torch.float16)  # to the bits that it had


def latent_shape(vae: nn.Module, width: int, height: int) -> tuple[int, int, int]:
    """(C, H, W) of the latents of a picture of this size in pixels; each level of the VAE but the last halves it."""
    factor = 2 ** (len(vae.config.block_out_channels) - 1)
    return vae.config.latent_channels, height // factor, width // factor
