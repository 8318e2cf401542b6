"""The codec of MiniMax H3's VAE for videos: chunks of 17 frames, each 5 latent frames, the last 3 of all left out.

Pixels are normalized as for ImageNet. An image is a clip of one frame, which diffusers' class encodes, but does not
decode.

Legend: B batch, C channels, F frames, H W pixels or latent cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from modules.families.Codec import Codec
from modules.families.frames import channel_stats, encode_frames

if TYPE_CHECKING:
    from torch import Tensor

    from modules.families.Codec import Posterior

FRAMES_PER_CHUNK, FRAMES_BEYOND = 17, 5  # of a clip: a multiple of the one, and the other
LATENTS = 5, 2  # of both
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def latent_frames(num_frames: int) -> int:
    """How many latent frames a clip has. num_frames: 1, or 17n + 5."""
    return 1 if num_frames == 1 else (num_frames - FRAMES_BEYOND) // FRAMES_PER_CHUNK * LATENTS[0] + LATENTS[1]


def decode(vae: Any, raw_BCFHW: Tensor) -> Tensor:
    """Clips [B, 3, F, H, W], or images [B, 3, H, W] of a single latent frame, in about [-1, 1]."""
    import torch

    if raw_BCFHW.shape[2] + vae.config.token_drop > vae.tokens_chunk_size:
        pixels = vae.decode(raw_BCFHW, return_dict=False)[0]
    else:  # less than a chunk, of which `decode` makes nothing
        own = vae.post_quant_conv.weight
        pixels = vae._decode_clip(raw_BCFHW.to(own))[:, :, vae.frame_pre_padding :]
    mean, std = (torch.tensor(values, device=pixels.device).view(1, 3, 1, 1, 1) for values in (_MEAN, _STD))
    return ((pixels.float() * std + mean) * 2 - 1).squeeze(2)


def _encode(vae: Any, pixels: Tensor) -> Posterior:
    return encode_frames(vae, _normalized(pixels))


def _encode_pieces(vae: Any, pieces_BCFHW: Iterator[Tensor]) -> Posterior:
    """What `encode` does with a whole clip: it goes through chunks of it, which do not see each other."""
    import torch
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

    encoded: list[Tensor] = []
    size, held, num_frames = vae.config.clip_length, None, 0
    for piece in pieces_BCFHW:
        num_frames += piece.shape[2]
        held = piece if held is None else torch.cat([held, piece], 2)
        while held.shape[2] >= size:
            encoded.append(vae._encode_clip(_normalized(held[:, :, :size])))
            held = held[:, :, size:]
    if num_frames == 1:
        return DiagonalGaussianDistribution(vae._encode_clip(_normalized(held)))
    if held is not None and held.shape[2]:
        filling = held[:, :, -1:].expand(-1, -1, size - held.shape[2], -1, -1)
        encoded.append(vae._encode_clip(_normalized(torch.cat([held, filling], 2))))
    raw = torch.cat(encoded, 2)
    return DiagonalGaussianDistribution(raw[:, :, : raw.shape[2] - vae.config.token_drop])


def _normalized(pixels: Tensor | None) -> Tensor:
    """[B, 3, ...] in [-1, 1] as the VAE takes it."""
    import torch

    assert pixels is not None
    mean, std = (
        torch.tensor(values, device=pixels.device, dtype=pixels.dtype).view(1, 3, *[1] * (pixels.ndim - 2))
        for values in (_MEAN, _STD)
    )
    return (pixels / 2 + 0.5 - mean) / std


def _shape(vae: Any, width: int, height: int, num_frames: int) -> tuple[int, ...]:
    cell = vae.spatial_compression_ratio
    return vae.config.latent_channels, latent_frames(num_frames), height // cell, width // cell


CHUNKED_CODEC = Codec(channel_stats, _encode, decode, _shape, _encode_pieces)
