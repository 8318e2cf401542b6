"""Parts of codecs for VAEs of video models, which see an image as a clip of one frame.

Legend: B batch, C channels, F frames, H W pixels or latent cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from torch import Tensor

    from modules.families.Codec import Posterior


def channel_stats(vae: ModelMixin) -> tuple[Tensor, Tensor]:
    """(shift, scale) of each channel, from the VAE's config."""
    import torch

    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1, 1) for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    return mean, 1.0 / std


def shape_by_ratios(vae: Any, width: int, height: int, num_frames: int) -> tuple[int, ...]:
    """The latent shape of a VAE that says how many pixels and frames a latent cell has."""
    cell, frames = vae.spatial_compression_ratio, (num_frames - 1) // vae.temporal_compression_ratio + 1
    return vae.config.latent_channels, frames, height // cell, width // cell


def encode_frames(vae: ModelMixin, pixels: Tensor) -> Posterior:
    """pixels: images [B, C, H, W] or clips [B, C, F, H, W]."""
    return vae.encode(pixels.unsqueeze(2) if pixels.ndim == 4 else pixels).latent_dist


def encode_wan_pieces(vae: Any, pieces_BCFHW: Iterator[Tensor]) -> Posterior:
    """What AutoencoderKLWan.encode does with a whole clip: its convolutions remember the frames before a piece.

    vae: an AutoencoderKLWan, whose members its base class does not declare.
    """
    import torch
    from diffusers.models.autoencoders.autoencoder_kl_wan import patchify
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

    encoded = []
    vae.clear_cache()
    for piece in pieces_BCFHW:
        vae._enc_conv_idx = [0]
        if vae.config.patch_size is not None:
            piece = patchify(piece, patch_size=vae.config.patch_size)
        encoded.append(vae.encoder(piece, feat_cache=vae._enc_feat_map, feat_idx=vae._enc_conv_idx))
    raw = vae.quant_conv(torch.cat(encoded, 2))
    vae.clear_cache()
    return DiagonalGaussianDistribution(raw)


def decode_frames(vae: ModelMixin, raw_BCFHW: Tensor) -> Tensor:
    """Clips [B, C, F, H, W], or images [B, C, H, W] of latents of a single frame."""
    return vae.decode(raw_BCFHW, return_dict=False)[0].squeeze(2)
