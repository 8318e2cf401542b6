"""The sound of clips, for models that make videos with it; see `Sound` in conditions.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from modules.families.frames import channel_stats

if TYPE_CHECKING:
    from torch import Tensor


def encode_stereo(pipe: Any, waveform: Tensor, count: int) -> Tensor:
    """`Sound.encode` where `audio_vae` takes each channel as a sample and has mean and std in its config."""
    vae = pipe.audio_vae
    raw = vae.encode(waveform[:, None].to(vae.device)).latent_dist.mode()[..., :count]  # [2, C, L]
    mean, scale = (each.to(raw).flatten()[:, None] for each in channel_stats(vae))
    return ((raw - mean) * scale).transpose(1, 2)


def sound_error(prediction: Tensor, given: Mapping[str, Any]) -> Tensor:
    """[B], the mean squared error of the flow that is predicted for the sound of clips; 0 for clips without any.

    prediction: as the `sound` in `given`, which is as in Batch.
    """
    target = given["sound_noise"].float() - given["sound"].float()
    error = (prediction.float() - target).square().flatten(1).mean(1)
    return error * given["sound_heard"].to(error.dtype)
