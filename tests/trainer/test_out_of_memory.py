"""What happens to a run if something does not fit into GPU memory."""

from __future__ import annotations

import weakref

import pytest
import torch

from modules.config.errors import UserError
from modules.weights.BaseModel import BaseModel

SAMPLE = (
    "sampling.samples.0.prompt=a photo of a cat",
    "sampling.samples.0.width=32",
    "sampling.samples.0.height=32",
    "sampling.samples.0.steps=1",
)


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_samples_that_do_not_fit_are_a_warning_and_what_they_held_is_given_back(kind, make_config, start, monkeypatch):
    def fail(*arguments):
        latents = torch.zeros(8)
        held.append(weakref.ref(latents))
        raise kind("CUDA error: out of memory")

    held, freed = [], []
    monkeypatch.setattr("modules.sampling.SampleRound.generate_images", fail)
    monkeypatch.setattr("modules.layers.device_memory.free_memory", lambda device: freed.append(held[0]() is None))
    trainer = start(make_config(*SAMPLE))
    trainer.sample()
    assert freed == [True]
    assert [text for text in trainer.callbacks.warnings if "lower their width and height" in text]


@pytest.mark.parametrize(
    ("part", "what", "remedy"),
    [
        ("vae", "VAE", "or close other programs"),
        ("text_encoder", "text encoders", "set model.text_encoder_quantization to int8"),
        ("unet", "model", "set model.denoiser_quantization to int8"),
    ],
)
def test_what_does_not_fit_at_the_start_is_named_with_what_to_lower(
    part, what, remedy, make_config, start, monkeypatch
):
    def refuse(base, *names, require=BaseModel.require, **options):
        if part in names:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        require(base, *names, **options)

    monkeypatch.setattr(BaseModel, "require", refuse)
    with pytest.raises(UserError, match=f"too small for the {what}: set model.weight_dtype to bfloat16.*{remedy}"):
        start(make_config())
