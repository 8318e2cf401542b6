"""Sound as mel spectrograms, and a stream of the denoiser for it, as in LTX-2; see `Sound` in conditions.py.

Source: Lightricks/LTX-2, packages/ltx-core/src/ltx_core/model/audio_vae/ops.py, AudioProcessor, which is torchaudio's
MelSpectrogram with its settings there.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from modules.families.conditions import Sound
from modules.families.sound import check_rate, noised_sound

if TYPE_CHECKING:
    from torch import Tensor

    from modules.families.Family import DenoiserCall

_RATE, _LATENTS = 16000, 25  # samples and latents of a second
FFT_SIZE = 1024  # samples, also of the window; that of the makers' models, for which diffusers' config has no place
_FLOOR = 1e-5  # amplitude below which all is alike


def mel_sound(fps: float) -> Sound:
    """The condition of a family whose videos have `fps` frames per second."""
    return Sound(
        _RATE,
        lambda frames: round(frames / fps * _LATENTS),
        encode_mel,
        ("audio_vae",),
        ("audio_vae", "vocoder"),  # in which Lightricks' trainer encodes: "needs float32 for quality"
        rows=1,
        output_rate=lambda pipe: pipe.vocoder.config.output_sampling_rate,
    )


def stream_inputs(call: DenoiserCall) -> dict[str, Any]:
    """What the denoiser takes for its stream of sound, which has the timesteps of the video.

    Without sound, the streams don't see each other, and that for sound has a single latent and word, of which nothing
    comes.
    """
    sound, words = noised_sound(call), slice(None)
    if sound is None:
        sound, words = call.latents.new_zeros(len(call.latents), 1, 1, call.denoiser.config.audio_in_channels), slice(1)
    return {
        "isolate_modalities": "sound" not in call.given,
        "use_cross_timestep": True,  # as in the pipeline
        "audio_hidden_states": sound[:, 0],
        "audio_timestep": call.timestep,
        "audio_encoder_hidden_states": call.text_tensor("audio_prompt_embeds")[:, words],
        "audio_encoder_attention_mask": call.text_tensor("prompt_attention_mask")[:, words],
        "audio_num_frames": sound.shape[2],
    }


def log_mel(waveform: Tensor, sampling_rate: int, hop: int, num_bins: int) -> Tensor:
    """float32[channels, 1 + samples // hop, num_bins], the logarithm of the amplitude in each band of Slaney's scale.

    waveform: float32[channels, samples], of more than FFT_SIZE / 2 samples; it is reflected at both ends, so that
        windows are centered at multiples of `hop` samples.
    num_bins: of bands from 0 Hz to half of the sampling rate. Each filter is a triangle of area 1.
    """
    import torch

    window = torch.hann_window(FFT_SIZE, device=waveform.device)
    spectrum = torch.stft(waveform, FFT_SIZE, hop, window=window, center=True, pad_mode="reflect", return_complex=True)
    mel = _filters(sampling_rate, num_bins).to(waveform.device).T @ spectrum.abs()
    return mel.clamp(min=_FLOOR).log().transpose(1, 2)


def encode_mel(pipe: Any, waveform: Tensor, count: int) -> Tensor:
    """`Sound.encode` where `audio_vae` takes spectrograms of both channels, [1, count, C].

    The mean and the standard deviation are those of a row, whose C are the channels times the bands of the latents.
    Raises UserError if the autoencoder is for another sampling rate.
    """
    import torch

    vae = pipe.audio_vae
    check_rate(vae, _RATE)
    waveform = waveform.to(vae.device, torch.float32)
    mel = log_mel(waveform, _RATE, vae.config.mel_hop_length, vae.config.mel_bins)
    raw = vae.encode(mel[None].to(vae.dtype)).latent_dist.mode().float()  # [1, C, L, bands]
    rows = raw.transpose(1, 2).flatten(2)[:, :count]
    return (rows - vae.latents_mean.to(rows)) / vae.latents_std.to(rows)


@lru_cache(maxsize=4)
def _filters(sampling_rate: int, num_bins: int) -> Tensor:
    """float32[FFT_SIZE / 2 + 1, num_bins]."""
    import torch
    from transformers.audio_utils import mel_filter_bank

    num_frequencies = FFT_SIZE // 2 + 1
    bands = mel_filter_bank(
        num_frequencies, num_bins, 0.0, sampling_rate / 2, sampling_rate, norm="slaney", mel_scale="slaney"
    )
    return torch.from_numpy(bands).float()
