"""What is counted of real architectures is what the estimates of memory take for granted."""

import pytest
import torch
from torch import nn

from modules.families.sd15 import SD15
from modules.machine.architectures import load_architectures
from scripts.model_counts import count_held, count_kept, vae_activations
from scripts.published_models import (
    add_adapters,
    build_denoiser,
    build_vae,
    decoder_call,
    num_quantizable,
    num_weights,
)


def test_stable_diffusion_15_and_the_autoencoder_have_the_weights_and_activations_of_the_table():
    model = load_architectures()["sd15"]
    unet = build_denoiser(SD15)
    assert num_weights(unet) == model.denoiser
    assert num_quantizable(SD15, "unet", unet) == model.quantizable_denoiser
    assert add_adapters(SD15, "unet", unet, "attention", rank=1) == model.adapter["attention"]
    assert num_weights(build_vae(SD15)) == model.vae
    for checkpointing, counted in ((False, model.vae_activations.whole), (True, model.vae_activations.part)):
        assert vae_activations(SD15, checkpointing) == pytest.approx(counted, rel=1e-3)


def test_what_is_kept_is_counted_once_and_without_the_weights():
    layers = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 4, bias=False), nn.ReLU()).to("meta")
    values = torch.empty(3, 8, device="meta")
    # both layers' inputs and the output of ReLU, each a float32
    assert count_kept(layers, lambda model: model(values)) == 3 * (8 + 16 + 4) * 4


def test_what_is_held_at_once_is_counted_as_it_comes_and_goes():
    layers = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 4, bias=False)).to("meta")
    values = torch.empty(3, 8, device="meta")
    # what goes into ReLU and what comes out of it; a view of a tensor takes nothing
    assert count_held(layers, lambda model: model(values).view(4, 3)) == 3 * (16 + 16) * 4


def test_a_decoder_holds_what_the_estimate_of_sampling_says():
    decode = decoder_call(SD15, 256)
    assert count_held(build_vae(SD15).eval(), decode) / 256**2 == pytest.approx(3 * 256 * 4, rel=1e-3)
