"""Codecs for AutoencoderKLFlux2, whose latents are normalized in patches of 2 x 2 cells.

The VAE keeps running statistics of the patches' channels in its batch norm, which it does not apply itself.

Legend: B batch, C channels, H W latent cells.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING

from modules.families.Codec import Codec, Posterior, decode, encode_to_distribution, shape_by_blocks

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from torch import Tensor


def patch_2x2(cells_BCHW: Tensor) -> Tensor:
    """Returns [B, 4 C, H/2, W/2]: the channels of a patch are ordered by channel and then row by row."""
    batch, channels, height, width = cells_BCHW.shape
    cells = cells_BCHW.reshape(batch, channels, height // 2, 2, width // 2, 2)
    return cells.permute(0, 1, 3, 5, 2, 4).reshape(batch, channels * 4, height // 2, width // 2)


def unpatch_2x2(patches_BCHW: Tensor) -> Tensor:
    """Inverse of `patch_2x2`."""
    batch, channels, height, width = patches_BCHW.shape
    cells = patches_BCHW.reshape(batch, channels // 4, 2, 2, height, width)
    return cells.permute(0, 1, 4, 2, 5, 3).reshape(batch, channels // 4, height * 2, width * 2)


def patch_cells(cells_BCHW: Tensor) -> Tensor:
    """As `patch_2x2`, but the channels of a patch are ordered row by row and then by channel."""
    return patch_2x2(cells_BCHW).unflatten(1, (-1, 4)).transpose(1, 2).flatten(1, 2)


def unpatch_cells(patches_BCHW: Tensor) -> Tensor:
    """Inverse of `patch_cells`."""
    return unpatch_2x2(patches_BCHW.unflatten(1, (4, -1)).transpose(1, 2).flatten(1, 2))


def pack_cells(latents_BCHW: Tensor) -> Tensor:
    """[B, H * W, C], for transformers that use each latent cell as a token."""
    return latents_BCHW.flatten(2).transpose(1, 2)


def unpack_cells(packed_BNC: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Inverse of `pack_cells`. shape: of the latents."""
    return packed_BNC.transpose(1, 2).reshape(shape)


def patched_codec(
    patch: Callable[[Tensor], Tensor], unpatch: Callable[[Tensor], Tensor], eps: float | None = None
) -> Codec:
    """The codec for a VAE whose statistics have the channels in the order that `patch` gives them.

    eps: added to the variances; None for that in the VAE's config.
    """

    def encode(vae: ModelMixin, pixels_BCHW: Tensor) -> Posterior:
        cells = encode_to_distribution(vae, pixels_BCHW)
        mean, std = patch(cells.mean), patch(cells.std)
        return SimpleNamespace(mean=mean, std=std, mode=lambda: mean, kl=cells.kl)

    def stats(vae: ModelMixin) -> tuple[Tensor, Tensor]:
        variance = vae.bn.running_var + (vae.config.batch_norm_eps if eps is None else eps)
        return vae.bn.running_mean.view(1, -1, 1, 1), variance.rsqrt().view(1, -1, 1, 1)

    return Codec(stats, encode, lambda vae, raw_BCHW: decode(vae, unpatch(raw_BCHW)), _shape)


def _shape(vae: ModelMixin, width: int, height: int, num_frames: int) -> tuple[int, ...]:
    channels, height, width = shape_by_blocks(vae, width, height, num_frames)
    return channels * 4, height // 2, width // 2
