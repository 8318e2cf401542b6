"""A run with a training adapter: it takes part in each step, and in no sample and no saved model."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from modules.weights.safe import load_tensors
from tests.weights.test_training_adapter import made

RUN = ("data.caption_dropout=0", "max_steps=1", "optimizer.learning_rate=1e-30", "optimizer.weight_decay=0")
SAMPLE = {"prompt": "a cat", "width": 32, "height": 32, "steps": 2}
SAMPLING = ("sampling.at_end=true", *(f"sampling.samples.0.{name}={value}" for name, value in SAMPLE.items()))


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_run_has_it_in_its_loss_but_not_in_its_samples_and_its_model(method, make_config, train, tiny_sd15, tmp_path):
    file = made("sd15", tiny_sd15, tmp_path)
    losses, samples, saved = [], [], []
    for name, adapter in (("without", ""), ("with", file)):
        folder = f"workspace_dir={tmp_path / name}"
        config = make_config(*RUN, *SAMPLING, folder, f"method={method}", f"model.training_adapter={adapter}")
        callbacks = train(config).callbacks
        losses.append(callbacks.losses[0])
        samples.append(np.asarray(Image.open(callbacks.samples[0]), int))
        (model,) = callbacks.saved
        saved.append(load_tensors(model / "unet" / "diffusion_pytorch_model.safetensors" if model.is_dir() else model))
    assert abs(losses[0] - losses[1]) > 1e-5  # else they are equal
    assert np.abs(samples[0] - samples[1]).max() <= 1
    assert saved[0].keys() == saved[1].keys()
    assert all((saved[1][name] - value).abs().max() < 1e-6 for name, value in saved[0].items())
