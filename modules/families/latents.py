"""Converts pixels to normalized latents and back, using a family's Codec.

Legend: B batch, C channels, H W pixels. Latents are [B, C, H, W], of video models [B, C, F, H, W].
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from torch import Tensor, nn

    from modules.families.Family import Family


def encode_pixels(family: Family, vae: ModelMixin, pixels: Tensor) -> Tensor:
    """Normalized latents of images [B, 3, H, W] or clips [B, 3, F, H, W] in [-1, 1].

    They are the mode of the encoder's distribution, so that caching is exact.
    """
    with _safe_from_overflow(vae):
        raw = family.codec.encode(vae, pixels.to(vae.device, vae.dtype)).mode()
        return _normalized(family, vae, raw)


def encode_pieces(family: Family, vae: ModelMixin, pieces: Iterator[Tensor]) -> Tensor:
    """What `encode_pixels` gives of one clip, [1, C, F, h, w], from its pieces, which are never all in memory.

    pieces: as Codec.encode_pieces takes them; a VAE without it gets them joined.
    """
    import torch

    if family.codec.encode_pieces is None:
        return encode_pixels(family, vae, torch.cat(list(pieces), 2))
    with _safe_from_overflow(vae):
        raw = family.codec.encode_pieces(vae, (piece.to(vae.device, vae.dtype) for piece in pieces)).mode()
        return _normalized(family, vae, raw)


def _normalized(family: Family, vae: ModelMixin, raw: Tensor) -> Tensor:
    shift, scale = _stats(family, vae, raw)
    return (raw - shift) * scale


def decode_latents(family: Family, vae: ModelMixin, latents: Tensor) -> Tensor:
    """Decodes normalized latents to images [B, 3, H, W], or clips [B, 3, F, H, W], in about [-1, 1]."""
    shift, scale = _stats(family, vae, latents)
    return family.codec.decode(vae, (latents / scale + shift).to(vae.dtype))


def latent_shape(family: Family, vae: ModelMixin, width: int, height: int, num_frames: int = 1) -> tuple[int, ...]:
    """The shape of the latents of one image, or of one clip. width, height: in pixels."""
    return family.codec.shape(vae, width, height, num_frames)


def _stats(family: Family, vae: ModelMixin, latents: Tensor) -> tuple[float | Tensor, float | Tensor]:
    """Shift and scale; tensors are moved to the device and dtype of the latents."""
    shift, scale = family.codec.stats(vae)
    return _like(shift, latents), _like(scale, latents)


def _like(value: float | Tensor, latents: Tensor) -> float | Tensor:
    return value if isinstance(value, int | float) else value.to(latents)


@contextlib.contextmanager
def _safe_from_overflow(vae: ModelMixin) -> Iterator[None]:
    """Context in which a float16 VAE computes in float32 if its config has `force_upcast`, to avoid overflow."""
    import torch

    if vae.dtype != torch.float16 or not vae.config.get("force_upcast"):
        yield
        return
    module: nn.Module = vae  # diffusers declares its own `to` without the binding to the module
    module.to(torch.float32)
    try:
        yield
    finally:
        module.to(torch.float16)  # restores the same bits
