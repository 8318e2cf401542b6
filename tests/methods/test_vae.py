"""Training the autoencoder: its loss against one written by hand, and what trains."""

import pytest
import torch
from diffusers import AutoencoderKL

from modules.config.errors import ConfigError
from modules.data.Batch import Batch
from modules.methods.registry import METHODS
from tests.support.prepared import prepared

VAE = METHODS["vae"]


def a_batch(weight=(1.0, 1.0), dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(2, 3, 32, 48, generator=generator) * 2 - 1
    noise = torch.randn(2, 4, 16, 24, generator=generator)
    return Batch(torch.tensor(weight), 2, noise.to(dtype), torch.zeros(2), ["", ""], pixels=pixels.to(dtype))


def by_hand(folder, reconstruction, kl_weight):
    """(loss, reconstruction, KL) of each picture, and the VAE: encoder, decoder and formulas written out."""
    vae = AutoencoderKL.from_pretrained(folder, subfolder="vae")
    batch = a_batch()
    mean, log_variance = vae.quant_conv(vae.encoder(batch.pixels)).chunk(2, 1)
    latents = mean + torch.exp(log_variance / 2) * batch.noise
    decoded = vae.decoder(vae.post_quant_conv(latents))
    difference = decoded - batch.pixels
    error = (difference.abs() if reconstruction == "l1" else difference**2).mean((1, 2, 3))
    divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).mean((1, 2, 3))
    return error + kl_weight * divergence, error, divergence, vae


@pytest.mark.parametrize("kl_weight", [0.0, 1e-6, 0.5])
@pytest.mark.parametrize("reconstruction", ["mse", "l1"])
def test_loss_and_gradients_are_those_written_by_hand(reconstruction, kl_weight, tiny_sd15):
    base, config = prepared(tiny_sd15, "vae", vae={"reconstruction": reconstruction, "kl_weight": kl_weight})
    loss_sum, count, shown = VAE.loss(base, config)(a_batch())
    loss_sum.backward()
    losses, errors, divergences, vae = by_hand(tiny_sd15, reconstruction, kl_weight)
    losses.sum().backward()
    assert count == 2
    assert loss_sum.item() / 2 == pytest.approx(losses.mean().item(), abs=1e-6)
    assert shown["reconstruction"].item() == pytest.approx(errors.sum().item(), abs=1e-6)
    assert shown["kl"].item() == pytest.approx(divergences.sum().item(), abs=1e-6)
    expected = dict(vae.named_parameters())
    for name, parameter in base.module("vae").named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, rtol=1e-4, atol=1e-6)


def test_an_autoencoder_that_overflows_in_float16_is_not_trained_in_it(tiny_sdxl):
    with pytest.raises(ConfigError, match=r"mixed_precision 'fp16': the VAE of .* use bf16 or no"):
        prepared(tiny_sdxl, "vae", family="sdxl", model={"mixed_precision": "fp16"})


def test_weights_multiply_the_losses_of_their_pictures(tiny_sd15):
    base, config = prepared(tiny_sd15, "vae", vae={"kl_weight": 0.5})
    with torch.no_grad():
        loss_sum, count, shown = VAE.loss(base, config)(a_batch(weight=(0.25, 0.0)))
        losses, errors, divergences, _ = by_hand(tiny_sd15, "mse", 0.5)
    assert count == 2
    assert loss_sum.item() == pytest.approx(0.25 * losses[0].item(), abs=1e-6)
    assert shown["reconstruction"].item() == pytest.approx(0.25 * errors[0].item(), abs=1e-6)
    assert shown["kl"].item() == pytest.approx(0.25 * divergences[0].item(), abs=1e-6)


def test_only_the_autoencoder_trains(tiny_sd15):
    base, config = prepared(tiny_sd15, "vae")
    assert list(VAE.components(base.family, config)) == ["vae"]
    assert all(parameter.requires_grad for parameter in base.module("vae").parameters())
    assert base.module("vae").training
    assert not any(p.requires_grad for part in ("unet", "text_encoder") for p in base.module(part).parameters())
    assert [name for name, _ in VAE.loss(base, config).named_children()] == ["vae"]


def test_a_vae_without_quantising_convolutions_trains_too(tiny_sd3):
    base, config = prepared(tiny_sd3, "vae", family="sd3")
    loss_sum, _, _ = VAE.loss(base, config)(a_batch())
    loss_sum.backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in base.module("vae").parameters())


def test_gradient_checkpointing_gives_the_same_loss_and_gradients(tiny_sd15):
    results = []
    for checkpointing in (False, True):
        base, config = prepared(tiny_sd15, "vae", model={"gradient_checkpointing": checkpointing})
        calls = []
        layer = base.module("vae").decoder.up_blocks[0].resnets[0].conv1
        layer.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        loss_sum, _, _ = VAE.loss(base, config)(a_batch())
        loss_sum.backward()
        gradients = {name: parameter.grad for name, parameter in base.module("vae").named_parameters()}
        results.append((loss_sum, gradients, len(calls)))
    (plain, gradients, once), (recomputed, gradients_2, twice) = results
    assert twice == 2 * once  # else this would compare nothing
    assert torch.equal(plain, recomputed)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradients_2[name], gradient, rtol=1e-5, atol=1e-7)


def test_a_bf16_autoencoder_sums_its_loss_in_float32(tiny_sd15):
    base, config = prepared(tiny_sd15, "vae", model={"weight_dtype": "bfloat16"})
    with torch.no_grad():
        loss_sum, _, _ = VAE.loss(base, config)(a_batch())
        losses, *_ = by_hand(tiny_sd15, "mse", 1e-6)
    assert loss_sum.dtype == torch.float32
    assert loss_sum.item() == pytest.approx(losses.sum().item(), rel=0.02)
