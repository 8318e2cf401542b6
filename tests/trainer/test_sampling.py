"""A run's samples follow its settings and are those of the pipeline."""

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL
from PIL import Image
from transformers import CLIPTextModel

from modules.sampling.generation import generate_images, image_requests


def pixels(image):
    return np.asarray(image, np.float32) / 255


def test_a_run_samples_with_the_sampler_of_its_settings(make_config, start, monkeypatch):
    used = []

    def make_black(pipe, requests, batch_size, sampler):
        used.append(sampler)
        return ((request, Image.new("RGB", (8, 8))) for request in requests)

    monkeypatch.setattr("modules.sampling.SampleRound.generate_images", make_black)
    start(make_config("sampling.sampler=heun", "sampling.samples.0.prompt=a cat")).sample()
    assert used == ["heun"]


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_only_the_denoiser_runs_in_mixed_precision(precision, dtype, make_config, start, monkeypatch):
    def record(owner, method, of, original):
        def recorded(*args, **kwargs):
            computed[of] = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, method, recorded)

    sample = {"prompt": "a cat", "width": 32, "height": 32, "steps": 2}
    settings = [f"sampling.samples.0.{name}={value}" for name, value in sample.items()]
    trainer, computed = start(make_config(*settings, f"model.mixed_precision={precision}")), {}
    base = trainer.prepared.base
    layer = base.module("unet").conv_in
    record(layer, "forward", "denoiser", layer.forward)
    record(CLIPTextModel, "forward", "text encoder", CLIPTextModel.forward)
    record(AutoencoderKL, "decode", "VAE", AutoencoderKL.decode)
    trainer.sample()
    assert computed == {"denoiser": dtype, "text encoder": torch.float32, "VAE": torch.float32}
    with Image.open(trainer.callbacks.samples[0]) as picture, base.using(*base.component_names) as pipe:
        ((_, expected),) = generate_images(pipe, image_requests(trainer.config.sampling.samples[0]), 1)
        assert np.abs(pixels(picture) - pixels(expected)).max() < 0.1
    assert computed["denoiser"] == torch.float32
