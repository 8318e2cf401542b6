"""How a family's VAE turns pictures into latents and back.

Legend: B batch, C channels, H W pixels or latent cells. Latents of video models have an axis of frames, too,
[B, C, F, H, W]; a picture is one frame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn


class Posterior(Protocol):
    """What an encoder says of the raw latents of a batch: a normal distribution for each value.

    Of an encoder without one there is the mode alone; such a family can't be trained by the method "vae".
    """

    mean: Tensor
    std: Tensor

    def mode(self) -> Tensor: ...

    def kl(self) -> Tensor:
        """The divergence from the standard normal distribution, summed over some axes of each sample."""


def encode_to_distribution(vae: nn.Module, pixels_BCHW: Tensor) -> Posterior:
    return vae.encode(pixels_BCHW).latent_dist


def decode(vae: nn.Module, raw_BCHW: Tensor) -> Tensor:
    return vae.decode(raw_BCHW, return_dict=False)[0]


def scaling_and_shift(vae: nn.Module) -> tuple[float, float]:
    return getattr(vae.config, "shift_factor", None) or 0.0, vae.config.scaling_factor


def shape_by_blocks(vae: nn.Module, width: int, height: int, num_frames: int) -> tuple[int, ...]:
    """Each level of the VAE but the last halves the picture."""
    factor = 2 ** (len(vae.config.block_out_channels) - 1)
    return vae.config.latent_channels, height // factor, width // factor


@dataclass(frozen=True)
class Codec:
    """The VAE of a family; what is not given is that of diffusers' AutoencoderKL.

    Raw latents are what the VAE gives and takes. Everything else works with normalized ones: (raw - shift) * scale.

    stats: vae -> (shift, scale), numbers or tensors that broadcast over raw latents.
    encode: (vae, pixels [B, 3, H, W] in [-1, 1]) -> the distribution of the raw latents.
    decode: (vae, raw latents) -> pixels [B, 3, H, W] in about [-1, 1].
    shape: (vae, width and height in pixels, number of frames) -> the shape of the latents of one sample.
    """

    stats: Callable[[nn.Module], tuple[float | Tensor, float | Tensor]] = scaling_and_shift
    encode: Callable[[nn.Module, Tensor], Posterior] = encode_to_distribution
    decode: Callable[[nn.Module, Tensor], Tensor] = decode
    shape: Callable[[nn.Module, int, int, int], tuple[int, ...]] = shape_by_blocks
