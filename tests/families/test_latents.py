"""What no pipeline shows of pixels and latents."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKL

from modules.families.latents import encode_pixels
from modules.families.registry import FAMILIES


def test_a_vae_in_float16_that_may_overflow_encodes_in_float32_and_stays_as_it_was(tiny_sdxl):
    vae = AutoencoderKL.from_pretrained(tiny_sdxl, subfolder="vae", torch_dtype=torch.float16)
    weights = {name: tensor.clone() for name, tensor in vae.state_dict().items()}
    pixels = torch.rand(1, 3, 16, 24) * 2 - 1
    with torch.no_grad():
        latents = encode_pixels(FAMILIES["sdxl"], vae, pixels)
        assert all(torch.equal(tensor, weights[name]) for name, tensor in vae.state_dict().items())
        expected = vae.float().encode(pixels).latent_dist.mode() * vae.config.scaling_factor
    assert latents.dtype == torch.float32
    assert torch.equal(latents, expected)


def test_a_vae_that_can_not_overflow_encodes_in_its_own_type(tiny_sdxl):
    vae = AutoencoderKL.from_pretrained(tiny_sdxl, subfolder="vae", torch_dtype=torch.float16)
    vae.register_to_config(force_upcast=False)
    with torch.no_grad():
        assert encode_pixels(FAMILIES["sdxl"], vae, torch.zeros(1, 3, 16, 24)).dtype == torch.float16
