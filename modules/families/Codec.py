"""How a family's VAE converts images to latents and back.

Legend: B batch, C channels, H W pixels or latent cells. Latents of video models also have a frame axis,
[B, C, F, H, W]; an image is one frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from torch import Tensor


class Posterior(Protocol):
    """The distribution of raw latents that a VAE encoder returns: a normal distribution for each element.

    Deterministic encoders only have `mode`; the method "vae" does not support such families.
    """

    mean: Tensor
    std: Tensor

    def mode(self) -> Tensor: ...

    def kl(self) -> Tensor:
        """The KL divergence from the standard normal distribution, summed over some axes of each sample."""


def encode_to_distribution(vae: ModelMixin, pixels_BCHW: Tensor) -> Posterior:
    return vae.encode(pixels_BCHW).latent_dist


def decode(vae: ModelMixin, raw_BCHW: Tensor) -> Tensor:
    return vae.decode(raw_BCHW, return_dict=False)[0]


def scaling_and_shift(vae: ModelMixin) -> tuple[float, float]:
    return getattr(vae.config, "shift_factor", None) or 0.0, vae.config.scaling_factor


def shape_by_blocks(vae: ModelMixin, width: int, height: int, num_frames: int) -> tuple[int, ...]:
    """The latent shape of a VAE whose levels, except the last, halve the image."""
    factor = 2 ** (len(vae.config.block_out_channels) - 1)
    return vae.config.latent_channels, height // factor, width // factor


@dataclass(frozen=True)
class Codec:
    """Functions that use a family's VAE; the defaults are for diffusers' AutoencoderKL.

    The VAE's own latents are called raw. All other code works with normalized latents, (raw - shift) * scale.

    stats: vae -> (shift, scale), as numbers or tensors that broadcast over raw latents.
    encode: (vae, pixels [B, 3, H, W], or of clips [B, 3, F, H, W], in [-1, 1]) -> distribution of the raw latents.
    decode: (vae, raw latents) -> pixels in about [-1, 1], of clips [B, 3, F, H, W].
    shape: (vae, width in pixels, height in pixels, number of frames) -> shape of the latents of one sample.
    encode_pieces: (vae, pieces [B, 3, f, H, W] of clips) -> what `encode` gives of them joined, for VAEs that go
        through clips in pieces anyway: one of 1 frame, then `Family.frame_step` frames each. None for others.
    """

    stats: Callable[[ModelMixin], tuple[float | Tensor, float | Tensor]] = scaling_and_shift
    encode: Callable[[ModelMixin, Tensor], Posterior] = encode_to_distribution
    decode: Callable[[ModelMixin, Tensor], Tensor] = decode
    shape: Callable[[ModelMixin, int, int, int], tuple[int, ...]] = shape_by_blocks
    encode_pieces: Callable[[ModelMixin, Iterator[Tensor]], Posterior] | None = None
