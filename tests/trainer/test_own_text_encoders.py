"""Runs whose text encoder comes from a file of its own."""

from __future__ import annotations

import shutil

import torch
from diffusers import StableDiffusionPipeline

from modules.weights.safe import load_tensors, save_tensors

WEIGHTS = "model.safetensors"


def test_a_text_encoder_from_a_file_is_trained_from_it_and_saved_in_the_model(make_config, train, tiny_sd15, tmp_path):
    base, file = shutil.copytree(tiny_sd15, tmp_path / "slim"), tmp_path / "clip_l.safetensors"
    old = load_tensors(base / "text_encoder" / WEIGHTS)
    (base / "text_encoder" / WEIGHTS).unlink()
    save_tensors(file, {name: value + 0.25 for name, value in old.items()})
    model = (f"model.base={base}", f"model.text_encoders.0={file}", "output.dtype=float32", "output.format=diffusers")
    train(make_config("method=full", "denoiser.train=false", "text_encoder.train=true", *model))
    saved = next((tmp_path / "run" / "models").iterdir())
    encoder = StableDiffusionPipeline.from_pretrained(saved).text_encoder.state_dict()
    differ = [
        (encoder[name] if name in encoder else encoder[name.removeprefix("text_model.")]) - value - 0.25
        for name, value in old.items()
    ]
    changes = torch.stack([change.abs().max() for change in differ])
    assert 0 < changes.max() < 0.05
