"""What is counted of real architectures is what the estimates of memory take for granted."""

import pytest
import torch
from torch import nn

from modules.session.memory_estimate import ARCHITECTURES
from scripts.count_memory import add_adapters, build_denoiser, build_vae, count_kept, num_weights, vae_call


def test_stable_diffusion_15_and_the_autoencoder_have_the_weights_and_activations_of_the_table():
    model = ARCHITECTURES["sd15"]
    unet = build_denoiser("sd15")
    assert num_weights(unet) == model.denoiser
    assert add_adapters(unet, "sd15", "attention", rank=1) == model.adapter["attention"]
    assert num_weights(build_vae()) == model.vae
    for checkpointing, counted in ((False, model.vae_activations.whole), (True, model.vae_activations.part)):
        assert count_kept(build_vae(), vae_call(256), checkpointing) / 256**2 == pytest.approx(counted, rel=1e-3)


def test_what_is_kept_is_counted_once_and_without_the_weights():
    layers = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 4, bias=False), nn.ReLU()).to("meta")
    values = torch.empty(3, 8, device="meta")
    # both layers' inputs and the output of ReLU, each a float32
    assert count_kept(layers, lambda model: model(values)) == 3 * (8 + 16 + 4) * 4
