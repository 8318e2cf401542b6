"""The sound of clips, for models that make videos with it; see `Sound` in conditions.py."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from modules.config.errors import UserError
from modules.families.conditions import Sound
from modules.families.frames import channel_stats

if TYPE_CHECKING:
    from torch import Tensor

    from modules.families.Family import DenoiserCall

_MONO_RATE, _MONO_HOP = 44100, 1024  # samples per second, and samples of a latent


def encode_stereo(pipe: Any, waveform: Tensor, count: int) -> Tensor:
    """`Sound.encode` where `audio_vae` takes each channel as a sample and has mean and std in its config."""
    vae = pipe.audio_vae
    raw = vae.encode(waveform[:, None].to(vae.device)).latent_dist.mode()[..., :count]  # [2, C, L]
    mean, scale = (each.to(raw).flatten()[:, None] for each in channel_stats(vae))
    return ((raw - mean) * scale).transpose(1, 2)


def mono_sound(fps: float) -> Sound:
    """The condition of a family with MMAudio's autoencoder, whose videos have `fps` frames per second.

    Source: Cheng et al. 2024, arXiv 2412.15322.
    """
    return Sound(
        _MONO_RATE,
        lambda frames: math.ceil(frames / fps * _MONO_RATE / _MONO_HOP),
        encode_mono,
        ("audio_vae",),
        ("audio_vae", "vocoder"),
        rows=1,
        channels="in_audio_dim",
    )


def encode_mono(pipe: Any, waveform: Tensor, count: int) -> Tensor:
    """`Sound.encode` where `audio_vae` takes the mean of both channels, and `count` latents are of as many hops of it.

    Raises UserError if the autoencoder is for another sampling rate.
    """
    import torch

    vae = pipe.audio_vae
    check_rate(vae, _MONO_RATE)
    length = count * vae.latent_hop_length
    mono = torch.nn.functional.pad(waveform.mean(0), (0, length))[:length]
    raw = vae.encode(mono[None].to(vae.device)).latent_dist.mode()  # [1, C, count]
    return (raw.float() * vae.config.scaling_factor).transpose(1, 2)


def check_rate(vae: Any, rate: int) -> None:
    """Raises UserError if an autoencoder for sound is for another sampling rate."""
    if vae.config.sample_rate != rate:
        raise UserError.at(
            "model.base",
            f": its autoencoder for sound takes {vae.config.sample_rate} samples per second in place of {rate}; "
            "choose another base, or clips without audio tracks.",
        )


def noised_sound(call: DenoiserCall) -> Tensor | None:
    """That of clips at the timestep of the video, in the shape of the `sound` in `given`; None without."""
    sound = call.given.get("sound")
    if sound is None:
        return None
    sigma = (call.timestep / 1000).to(sound.dtype).view(-1, 1, 1, 1)
    return sound + sigma * (call.given["sound_noise"] - sound)


def sound_error(prediction: Tensor, given: Mapping[str, Any]) -> Tensor:
    """[B], the mean squared error of the flow that is predicted for the sound of clips; 0 for clips without any.

    prediction: as the `sound` in `given`, which is as in Batch.
    """
    target = given["sound_noise"].float() - given["sound"].float()
    error = (prediction.float() - target).square().flatten(1).mean(1)
    return error * given["sound_heard"].to(error.dtype)
