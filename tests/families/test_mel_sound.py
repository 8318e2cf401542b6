"""The sound that LTX-2 learns: mel spectrograms as its makers' code makes them, and back through VAE and vocoder."""

import numpy as np
import pytest
import torch

from modules.config.errors import UserError
from modules.families.conditions import Sound
from modules.families.mel_sound import encode_mel, log_mel
from modules.families.registry import FAMILIES

SOUND = FAMILIES["ltx2"].condition(Sound)
RATE, HOP, FFT = 16000, 160, 1024


def hertz(mel):
    """Of Slaney's scale: even steps of 200/3 Hz up to 1000 Hz, then 27 for each factor of 6.4."""
    return mel * 200 / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)


def slow_log_mel(waveform, bins):
    """By the definitions, in double precision: sums over samples and over frequencies."""
    top = 15 + 27 * np.log(RATE / 2 / 1000) / np.log(6.4)
    edges = [hertz(top * number / (bins + 1)) for number in range(bins + 2)]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FFT) / FFT)
    waves = np.exp(-2j * np.pi * np.outer(np.arange(FFT // 2 + 1), np.arange(FFT)) / FFT)
    mirrored = np.concatenate([waveform[FFT // 2 : 0 : -1], waveform, waveform[-2 : -FFT // 2 - 2 : -1]])
    frames = []
    for center in range(0, len(waveform) + 1, HOP):
        amplitude = np.abs(waves @ (window * mirrored[center : center + FFT]))
        bands = []
        for low, middle, high in zip(edges, edges[1:], edges[2:], strict=False):
            total = 0.0
            for number, size in enumerate(amplitude):
                frequency = number * RATE / FFT
                slope = min((frequency - low) / (middle - low), (high - frequency) / (high - middle))
                total += max(0.0, slope) * 2 / (high - low) * size
            bands.append(np.log(max(total, 1e-5)))
        frames.append(bands)
    return np.array(frames)


def test_a_spectrogram_is_that_of_the_definitions():
    times = np.arange(2001) / RATE
    tones = 0.4 * np.sin(2 * np.pi * 440 * times) + 0.01 * np.random.default_rng(1).standard_normal(len(times))
    waveform = np.stack([tones, np.where(times < 0.06, 0, tones)])
    found = log_mel(torch.from_numpy(waveform).float(), RATE, HOP, 64).numpy()
    assert found.shape == (2, 1 + 2001 // HOP, 64)
    for channel, of_channel in zip(found, waveform, strict=True):
        assert np.abs(channel - slow_log_mel(of_channel, 64)).max() < 2e-3  # rounding, where there is next to nothing
    assert found[1].min() == pytest.approx(np.log(1e-5))


@pytest.fixture(scope="module")
def pipe(tiny_model):
    from diffusers import LTX2Pipeline

    return LTX2Pipeline.from_pretrained(str(tiny_model("ltx2")), local_files_only=True)


def test_latents_are_those_of_the_pipeline_and_last_as_long_as_the_clip(pipe):
    frames = 17
    waveform = torch.rand(2, round(frames / 24 * RATE), generator=torch.Generator().manual_seed(1)) - 0.5
    count = SOUND.length(frames)
    assert count == round(frames / 24 * 25)
    with torch.no_grad():
        latents = SOUND.encode(pipe, waveform, count)
        config, vae = pipe.audio_vae.config, pipe.audio_vae
        mel = log_mel(waveform, RATE, config.mel_hop_length, config.mel_bins)[None]
        raw = vae.encode(mel).latent_dist.mode()[:, :, :count]
        packed = pipe._normalize_audio_latents(pipe._pack_audio_latents(raw), vae.latents_mean, vae.latents_std)
        assert torch.equal(latents, packed)
        back = pipe._denormalize_audio_latents(latents, vae.latents_mean, vae.latents_std)
        back = pipe._unpack_audio_latents(back, count, config.mel_bins // vae.mel_compression_ratio)
        assert torch.allclose(back, raw, atol=1e-5)
        heard = pipe.vocoder(vae.decode(back).sample)
    assert latents.shape == (1, count, pipe.transformer.config.audio_in_channels)
    assert heard.shape[:2] == (1, 2)
    assert heard.shape[2] / SOUND.output_rate(pipe) == pytest.approx(frames / 24, abs=0.05)  # causal: three hops less


def test_the_first_latents_do_not_see_what_is_heard_later(pipe):
    waveform = torch.rand(2, RATE, generator=torch.Generator().manual_seed(1)) - 0.5
    other = waveform.clone()
    other[:, RATE // 2 :] = 0
    with torch.no_grad():
        one, two = (encode_mel(pipe, each, 25) for each in (waveform, other))
    same = (one == two).all(-1)[0]
    # 12 latents begin in the first half; one of them sees into the other by its window of 64 ms
    assert same[:11].all()
    assert not same[13:].any()


def test_a_clip_of_any_length_has_as_many_latents_as_samples_have():
    for frames in (1, *range(9, 500, 8)):
        mel_frames = 1 + round(frames / 24 * RATE) // HOP
        assert SOUND.length(frames) <= -(-mel_frames // 4)


def test_an_autoencoder_for_another_rate_is_refused(pipe, monkeypatch):
    monkeypatch.setattr(pipe.audio_vae, "_internal_dict", {**pipe.audio_vae.config, "sample_rate": 48000})
    monkeypatch.setattr(type(pipe.audio_vae), "config", property(lambda self: Config(self._internal_dict)))
    with pytest.raises(UserError, match="takes 48000 samples per second in place of 16000"):
        encode_mel(pipe, torch.zeros(2, RATE), 25)


class Config(dict):
    def __getattr__(self, name):
        return self[name]
