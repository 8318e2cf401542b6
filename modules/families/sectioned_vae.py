"""The codec of models that make videos section by section: each section of a clip is encoded and decoded separately.

The latents of a whole clip would be different: a VAE such as Wan's encodes the first frame of what it is given into a
latent frame of its own, and remembers it in those that follow.

Legend: B batch, C channels, F frames, H W pixels or latent cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from modules.families.Codec import Codec

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from torch import Tensor

    from modules.families.Codec import Posterior


def sectioned(codec: Codec, frames: int, latent_frames: int) -> Codec:
    """`codec` for clips of sections of so many frames and latent frames; an image stays a clip of one frame.

    codec: its `encode` returns a DiagonalGaussianDistribution of diffusers.
    """

    def encode(vae: ModelMixin, pixels: Tensor) -> Posterior:
        if pixels.ndim == 4:
            return codec.encode(vae, pixels)
        return _joined(codec.encode(vae, section) for section in pixels.split(frames, 2))

    def encode_pieces(vae: ModelMixin, pieces_BCFHW: Iterator[Tensor]) -> Posterior:
        return _joined(codec.encode(vae, section) for section in _regrouped(pieces_BCFHW, frames))

    def decode(vae: ModelMixin, raw_BCFHW: Tensor) -> Tensor:
        import torch

        if raw_BCFHW.shape[2] <= latent_frames:
            return codec.decode(vae, raw_BCFHW)
        return torch.cat([codec.decode(vae, section) for section in raw_BCFHW.split(latent_frames, 2)], 2)

    def shape(vae: ModelMixin, width: int, height: int, num_frames: int) -> tuple[int, ...]:
        channels, _, *cells = codec.shape(vae, width, height, 1)
        return channels, num_frames // frames * latent_frames or 1, *cells

    return Codec(codec.stats, encode, decode, shape, encode_pieces)


def _joined(sections: Iterator[Posterior]) -> Posterior:
    import torch
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

    parameters = []
    for section in sections:
        assert isinstance(section, DiagonalGaussianDistribution)
        parameters.append(section.parameters)
    return DiagonalGaussianDistribution(torch.cat(parameters, 2))


def _regrouped(pieces_BCFHW: Iterator[Tensor], size: int) -> Iterator[Tensor]:
    """The frames of the pieces, `size` at a time."""
    import torch

    held: list[Tensor] = []
    for piece in pieces_BCFHW:
        held.append(piece)
        while sum(one.shape[2] for one in held) >= size:
            whole = torch.cat(held, 2)
            yield whole[:, :, :size]
            held = [whole[:, :, size:]]
    rest = torch.cat(held, 2)
    if rest.shape[2]:
        yield rest
