"""The loss of a step is what a reference written with diffusers alone gives, and so are its gradients."""

import pytest
import torch
from diffusers import DDPMScheduler, StableDiffusion3Pipeline, StableDiffusionPipeline

from modules.data.Batch import Batch
from modules.methods.registry import METHODS
from tests.support.prepared import prepared

PROMPTS = ["a photo of a cat", "a dog", ""]
U = [0.1234, 0.5678, 0.9]
SD = {"epsilon": "tiny_sd15", "v": "tiny_sd15_v"}
OBJECTIVES = [*SD, "flow"]


def noise_and_latents(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    latents, noise = (torch.randn(3, 4, 16, 24, generator=generator) for _ in range(2))
    return latents.to(dtype), noise.to(dtype)


def a_batch(base, text_trains=False, weight=(1.0, 1.0, 1.0), rows=slice(None)):
    latents, noise = noise_and_latents(torch.promote_types(base.dtype, torch.float32))
    prompts = PROMPTS[rows]
    text = None
    if not text_trains:
        with torch.no_grad():
            outputs = base.pipe.encode_prompt(**encode_options(base.pipe, prompts))
        text = {name: value for name, value in zip(base.family.text.outputs, outputs, strict=True) if name}
    return Batch(
        weight=torch.tensor(weight)[rows],
        count=len(prompts),
        noise=noise[rows],
        u=torch.tensor(U)[rows],
        prompts=prompts,
        latents=latents[rows],
        text=text,
    )


def encode_options(pipe, prompts):
    options = {"prompt": prompts, "device": "cpu", "num_images_per_prompt": 1, "do_classifier_free_guidance": False}
    return options | ({"prompt_2": None, "prompt_3": None} if isinstance(pipe, StableDiffusion3Pipeline) else {})


def reference_losses(objective, folder):
    """(each sample's loss with its graph, the pipeline): diffusers and torch alone."""
    latents, noise = noise_and_latents()
    if objective == "flow":
        pipe = StableDiffusion3Pipeline.from_pretrained(folder)
        embeds, _, pooled, _ = pipe.encode_prompt(**encode_options(pipe, PROMPTS))
        sigma = torch.tensor(U).view(3, 1, 1, 1)
        prediction = pipe.transformer(
            hidden_states=(1.0 - sigma) * latents + sigma * noise,
            timestep=1000 * torch.tensor(U),
            encoder_hidden_states=embeds,
            pooled_projections=pooled,
        ).sample
        target = noise - latents
    else:
        pipe = StableDiffusionPipeline.from_pretrained(folder)
        scheduler = DDPMScheduler.from_pretrained(folder, subfolder="scheduler")
        timestep = torch.tensor([123, 567, 900])
        ids = pipe.tokenizer(PROMPTS, padding="max_length", max_length=77, return_tensors="pt").input_ids
        embeds = pipe.text_encoder(ids)[0]
        prediction = pipe.unet(scheduler.add_noise(latents, noise, timestep), timestep, embeds).sample
        target = noise if objective == "epsilon" else scheduler.get_velocity(latents, noise, timestep)
    return torch.nn.functional.mse_loss(prediction, target, reduction="none").mean((1, 2, 3)), pipe


@pytest.fixture
def folder(request, objective):
    return request.getfixturevalue(SD.get(objective, "tiny_sd3"))


@pytest.mark.parametrize("text_trains", [False, True])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_loss_and_gradients_are_those_of_a_reference_in_diffusers(objective, folder, text_trains):
    family = "sd3" if objective == "flow" else "sd15"
    base, config = prepared(folder, "full", family, text_encoder={"train": text_trains})
    for module in base.pipe.components.values():
        if isinstance(module, torch.nn.Module):
            module.eval()  # T5 drops out in training, which a reference can't follow
    loss_sum, count, metrics = METHODS["full"].loss(base, config)(a_batch(base, text_trains))
    loss_sum.backward()

    losses, reference = reference_losses(objective, folder)
    losses.sum().backward()
    assert (count, metrics) == (3, {})
    assert loss_sum.item() / 3 == pytest.approx(losses.mean().item(), abs=1e-6)
    compared = base.family.denoisers + (base.family.text.encoders if text_trains else ())
    for name in compared:
        expected = dict(getattr(reference, name).named_parameters())
        for key, parameter in base.module(name).named_parameters():
            if expected[key].grad is None:
                assert parameter.grad is None
            else:
                torch.testing.assert_close(parameter.grad, expected[key].grad, rtol=1e-4, atol=1e-6)
    if not text_trains:
        assert all(parameter.grad is None for parameter in base.module("text_encoder").parameters())


def test_the_prediction_type_of_the_settings_wins_over_the_bases(tiny_sd15, tiny_sd15_v):
    as_v, config = prepared(tiny_sd15, "full", model={"prediction_type": "v_prediction"})
    with torch.no_grad():
        loss_sum, _, _ = METHODS["full"].loss(as_v, config)(a_batch(as_v))
        epsilon, _ = reference_losses("epsilon", tiny_sd15)
        v, _ = reference_losses("v", tiny_sd15)
    assert loss_sum.item() == pytest.approx(v.sum().item(), abs=1e-5)
    assert loss_sum.item() != pytest.approx(epsilon.sum().item(), abs=1e-2)


def test_weights_multiply_the_losses_of_their_samples(tiny_sd15):
    base, config = prepared(tiny_sd15, "full")
    loss = METHODS["full"].loss(base, config)
    with torch.no_grad():
        each, _ = reference_losses("epsilon", tiny_sd15)
        weighted, count, _ = loss(a_batch(base, weight=(0.5, 0.0, 2.0)))
    assert weighted.item() == pytest.approx((each * torch.tensor([0.5, 0.0, 2.0])).sum().item(), abs=1e-6)
    assert count == 3


def test_the_loss_of_a_batch_is_the_sum_over_its_parts(tiny_sd15):
    base, config = prepared(tiny_sd15, "full")
    loss = METHODS["full"].loss(base, config)
    with torch.no_grad():
        whole, _, _ = loss(a_batch(base))
        parts = [loss(a_batch(base, rows=rows))[:2] for rows in (slice(0, 1), slice(1, 3))]
    assert sum(part.item() for part, _ in parts) == pytest.approx(whole.item(), abs=1e-5)
    assert [count for _, count in parts] == [1, 2]


def test_a_float64_model_computes_its_loss_in_float64(tiny_sd15):
    base, config = prepared(tiny_sd15, "full", model={"weight_dtype": "float64"})
    with torch.no_grad():
        loss_sum, _, _ = METHODS["full"].loss(base, config)(a_batch(base))
        expected, _ = reference_losses("epsilon", tiny_sd15)
    assert loss_sum.dtype == torch.float64
    assert loss_sum.item() == pytest.approx(expected.sum().item(), abs=1e-4)


def test_a_bf16_model_sums_its_loss_in_float32(tiny_sd15):
    base, config = prepared(tiny_sd15, "full", model={"weight_dtype": "bfloat16"})
    with torch.no_grad():
        loss_sum, _, _ = METHODS["full"].loss(base, config)(a_batch(base))
        expected, _ = reference_losses("epsilon", tiny_sd15)
    assert loss_sum.dtype == torch.float32
    assert loss_sum.item() == pytest.approx(expected.sum().item(), rel=0.02)


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("objective", ["epsilon", "flow"])
def test_gradient_checkpointing_gives_the_same_loss_and_gradients(objective, folder, method):
    family = "sd3" if objective == "flow" else "sd15"
    results = []
    for checkpointing in (False, True):
        torch.manual_seed(0)  # of the adapters' first values
        base, config = prepared(
            folder, method, family, model={"gradient_checkpointing": checkpointing}, text_encoder={"train": True}
        )
        calls = count_forwards(base.module(base.family.denoisers[0]))
        torch.manual_seed(1)  # T5's dropout
        loss_sum, _, _ = METHODS[method].loss(base, config)(a_batch(base, text_trains=True))
        loss_sum.backward()
        parts = METHODS[method].components(base.family, config)
        gradients = {
            f"{part}.{name}": parameter.grad
            for part in parts
            for name, parameter in base.module(part).named_parameters()
            if parameter.requires_grad
        }
        results.append((loss_sum, gradients, len(calls)))
    (plain, gradients, once), (recomputed, gradients_2, twice) = results
    assert twice == 2 * once  # else this would compare nothing
    assert torch.equal(plain, recomputed)
    assert gradients.keys() == gradients_2.keys()
    for name, gradient in gradients.items():
        assert (gradient is None) == (gradients_2[name] is None)
        if gradient is not None:
            torch.testing.assert_close(gradients_2[name], gradient, rtol=1e-5, atol=1e-7)


def count_forwards(denoiser):
    """A list that grows with each forward pass of an attention's first projection."""
    calls = []
    layer = next(module for name, module in denoiser.named_modules() if name.endswith(".to_q"))
    layer.register_forward_hook(lambda *_: calls.append(1))
    return calls


def test_only_what_trains_is_registered_in_the_loss(tiny_sd15):
    base, config = prepared(tiny_sd15, "full", text_encoder={"train": True}, denoiser={"train": False})
    loss = METHODS["full"].loss(base, config)
    assert [name for name, _ in loss.named_children()] == ["text_encoder"]
    assert all(name.startswith("text_encoder.") for name, _ in loss.named_parameters())
