"""MiniMax H3's packed sequence: rows of text, of both channels of the sound, and of the video's 2 x 2 cells.

Legend: B batch, C channels, F latent frames, H W latent cells.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_PATCH = 2
_TEXT_TAG, _VIDEO_TAG, SOUND_TAG, _SOUND_CHANNELS = 1, 0, 2, 2  # as in diffusers' MiniMaxH3ModularPipeline


@lru_cache(maxsize=64)
def layout(
    num_words: int, num_sounds: int, frames: int, height: int, width: int, device: torch.device
) -> dict[str, Tensor]:
    """What the denoiser takes of the places of all rows. num_sounds: for each of the two channels."""
    import torch
    from diffusers.modular_pipelines.minimax_h3.before_denoise import MiniMaxH3PrepareLayoutStep

    tags = torch.full((num_words,), _TEXT_TAG)
    patch = (1, _PATCH, _PATCH)
    rows = MiniMaxH3PrepareLayoutStep.build_packed_sequence(
        tags, frames, height, width, num_sounds, patch, _SOUND_CHANNELS, SOUND_TAG, _VIDEO_TAG
    )
    names = ("position_ids", "token_tags", "video_indices", "audio_indices", "text_indices")
    places = {name: value.to(device) for name, value in zip(names, rows[:5], strict=True)}
    return {**places, "position_ids": rows[0].float().to(device)}


def pack_rows(latents_BCFHW: Tensor) -> Tensor:
    """[B, F * H / 2 * W / 2, C * 4], frame by frame and row by row."""
    cells = latents_BCFHW.unflatten(4, (-1, _PATCH)).unflatten(3, (-1, _PATCH))  # [B, C, F, h, p, w, p]
    return cells.permute(0, 2, 3, 5, 1, 4, 6).flatten(4).flatten(1, 3)


def unpack_rows(packed: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The latents of `shape` whose rows these are, with or without the batch's axis."""
    batch, channels, frames, height, width = shape
    cells = packed.reshape(batch, frames, height // _PATCH, width // _PATCH, channels, _PATCH, _PATCH)
    return cells.permute(0, 4, 1, 2, 5, 3, 6).reshape(shape)
