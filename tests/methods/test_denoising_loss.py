"""The loss of a step is what a reference written with diffusers alone gives, and so are its gradients."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from diffusers import (
    DDPMScheduler,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
)
from diffusers.training_utils import compute_loss_weighting_for_sd3, compute_snr

from modules.config.TrainConfig import TrainConfig
from modules.data.Batch import Batch
from modules.diffusion.objectives import Ddpm
from modules.families.conditioning import encode_text, is_unconditional_zero
from modules.families.sd3 import SD3
from modules.layers.frozen_norms import fuse_norms
from modules.methods.DenoisingLoss import DenoisingLoss
from modules.methods.frozen import without_adapters
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
    if isinstance(pipe, StableDiffusionXLPipeline):
        return options | {"prompt_2": None}
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
    loss_sum, count, _ = METHODS["full"].loss(base, config)(a_batch(base, text_trains))
    loss_sum.backward()

    losses, reference = reference_losses(objective, folder)
    losses.sum().backward()
    assert count == 3
    assert loss_sum.item() / 3 == pytest.approx(losses.mean().item(), abs=1e-6)
    compared = base.family.denoisers + (base.family.text.encoders if text_trains else ())
    for name in compared:
        expected = dict(getattr(reference, name).named_parameters())
        for key, parameter in base.module(name).named_parameters():
            if expected[key].grad is None or key.startswith(base.family.frozen_layers.get(name, ("-",))):
                assert parameter.grad is None
            else:
                torch.testing.assert_close(parameter.grad, expected[key].grad, rtol=1e-4, atol=1e-6)
    if not text_trains:
        assert all(parameter.grad is None for parameter in base.module("text_encoder").parameters())


def test_by_default_the_loss_is_the_weighted_mean_squared_error_bit_for_bit():
    _, loss = canvas_loss()
    batch = replace(canvas_batch(None), weight=torch.tensor([0.5, 1.0, 2.0]))
    error = (torch.zeros_like(batch.noise) - (batch.noise - batch.latents)).square().flatten(1).mean(1)
    assert torch.equal(loss(batch)[0], (error * batch.weight).sum())


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


# --- what the settings of noise and loss change -----------------------------------------------------------------------


def losses_of(folder, method="full", family="sd15", changes=None, **settings):
    """Each sample's loss with these settings. changes: fields of the batch."""
    base, config = prepared(folder, method, family, **settings)
    loss = METHODS[method].loss(base, config)
    with torch.no_grad():
        return torch.stack([loss(replace(part, **_rows(changes or {}, row)))[0] for row, part in parts(base)])


def parts(base):
    return [(row, a_batch(base, rows=slice(row, row + 1))) for row in range(3)]


def _rows(values, row):
    return {name: value[row : row + 1] for name, value in values.items()}


def snr_of(folder):
    scheduler = DDPMScheduler.from_pretrained(folder, subfolder="scheduler")
    return compute_snr(scheduler, torch.tensor([123, 567, 900]))


@pytest.mark.parametrize(
    ("objective", "weighting", "expected"),
    [
        ("epsilon", "min_snr_gamma", lambda snr: snr.clamp(max=5) / snr),
        ("v", "min_snr_gamma", lambda snr: snr.clamp(max=5) / (snr + 1)),
        ("epsilon", "debiased", lambda snr: snr**-0.5),
        ("v", "debiased", lambda snr: snr**0.5 / (snr + 1)),
        ("flow", "sigma_sqrt", lambda snr: torch.tensor(U) ** -2),
        ("flow", "cosmap", lambda snr: compute_loss_weighting_for_sd3("cosmap", torch.tensor(U))),
    ],
)
def test_the_weight_of_a_timestep_multiplies_its_loss(objective, folder, weighting, expected):
    family = "sd3" if objective == "flow" else "sd15"
    weighted = losses_of(folder, family=family, loss={"weighting": weighting})
    with torch.no_grad():
        plain, _ = reference_losses(objective, folder)
    snr = None if objective == "flow" else snr_of(folder)
    torch.testing.assert_close(weighted, plain * expected(snr), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("objective", ["flow"])
def test_errors_are_mixed_by_their_shares(objective, folder):
    each = {name: losses_of(folder, family="sd3", loss={"mse": 0, name: 1}) for name in ("mse", "mae", "huber")}
    mixed = losses_of(folder, family="sd3", loss={"mse": 0.5, "mae": 0.25, "huber": 2})
    torch.testing.assert_close(mixed, 0.5 * each["mse"] + 0.25 * each["mae"] + 2 * each["huber"])


def test_input_noise_changes_what_the_model_sees_and_not_what_it_learns(tiny_sd15):
    latents, noise = noise_and_latents()
    changed = losses_of(tiny_sd15, changes={"input_noise": noise + 0.1})
    pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
    scheduler = DDPMScheduler.from_pretrained(tiny_sd15, subfolder="scheduler")
    timestep = torch.tensor([123, 567, 900])
    embeds = pipe.encode_prompt(**encode_options(pipe, PROMPTS))[0]
    with torch.no_grad():
        prediction = pipe.unet(scheduler.add_noise(latents, noise + 0.1, timestep), timestep, embeds).sample
    torch.testing.assert_close(changed, (prediction - noise).square().mean((1, 2, 3)), rtol=1e-5, atol=1e-6)


def test_offset_noise_is_seen_and_learned_with_the_share_of_its_timestep(tiny_sd15):
    _, noise = noise_and_latents()
    offset = torch.randn(3, 4, 1, 1, generator=torch.Generator().manual_seed(1))
    alphas = DDPMScheduler.from_pretrained(tiny_sd15, subfolder="scheduler").alphas_cumprod
    share = Ddpm(alphas, "epsilon").offset_share(torch.tensor(U)).reshape(3, 1, 1, 1)
    for further in ({}, {"input_noise": noise + 0.1}):
        added = {"input_noise": noise + 0.1 + share * offset} if further else {}
        expected = losses_of(tiny_sd15, changes={"noise": noise + share * offset, **added})
        assert torch.equal(losses_of(tiny_sd15, changes={"offset": offset, **further}), expected)


def test_with_zero_conditioning_the_model_sees_no_text(tiny_sdxl):
    base, config = prepared(tiny_sdxl, "full", "sdxl")
    sizes = torch.tensor([[16.0, 24, 0, 0, 16, 24]]).expand(3, 6)
    batch = replace(a_batch(base), given={"sizes": sizes})
    loss = METHODS["full"].loss(base, config)
    nothing = {name: torch.zeros_like(value) for name, value in batch.text.items()}
    with torch.no_grad():
        marked, _, _ = loss(replace(batch, unconditional=torch.tensor([True, False, True])))
        rows = [replace(batch, text=nothing), batch, replace(batch, text=nothing)]
        expected = sum(loss(replace(given, weight=torch.eye(3)[row]))[0] for row, given in enumerate(rows))
    assert is_unconditional_zero(base.family, base.pipe)
    assert marked.item() == pytest.approx(expected.item(), abs=1e-5)
    assert marked.item() != pytest.approx(loss(batch)[0].item(), abs=1e-3)


def test_a_first_frame_that_is_given_has_no_noise_and_no_loss(tiny_model):
    folder = tiny_model("wan22_5b")
    base, config = prepared(folder, "lora", "wan22_5b", loss={"masked_training": True, "unmasked_weight": 0.0})
    generator = torch.Generator().manual_seed(0)
    latents, noise = (torch.randn(2, 48, 3, 4, 4, generator=generator) for _ in range(2))
    with torch.no_grad():
        text = encode_text(base.family, base.pipe, PROMPTS[:2])
    plain = Batch(torch.ones(2), 2, noise, torch.tensor(U[:2]), PROMPTS[:2], latents, text=text)
    first_given = torch.tensor([False, True])
    clean = first_given.view(-1, 1, 1, 1, 1) & (torch.arange(3) == 0).view(1, 1, -1, 1, 1)
    given = replace(plain, given={"first_given": first_given}, clean=clean)
    loss = METHODS["lora"].loss(base, config)

    def losses(batch):
        with torch.no_grad():
            return torch.stack([loss(replace(batch, weight=weight))[0] for weight in torch.eye(2)])

    other = noise.clone()
    other[:, :, 0] += 1
    assert losses(given)[0] == losses(plain)[0]  # the rows do not touch each other
    assert losses(replace(given, noise=other))[1] == losses(given)[1]
    assert losses(replace(given, noise=other))[0] != losses(given)[0]
    noised = (1 - plain.u[1]) * latents + plain.u[1] * noise
    noised[:, :, 0] = latents[:, :, 0]
    tokens = torch.full((1, 12), 1000 * plain.u[1])
    tokens[:, :4] = 0
    with torch.no_grad():
        prediction = base.pipe.transformer(noised[1:], tokens, text["prompt_embeds"][1:]).sample
    error = (prediction - (noise - latents)[1:]).square()[:, :, 1:]
    torch.testing.assert_close(losses(given)[1], error.mean())
    left = torch.zeros(2, 1, 3, 4, 4)
    left[..., :2] = 1
    half = losses(replace(given, mask=left))[1]
    torch.testing.assert_close(half, error[..., :2].mean() / 2)


# --- masks ------------------------------------------------------------------------------------------------------------


def left_half(count=3):
    mask = torch.zeros(count, 1, 16, 24)
    mask[..., :12] = 1
    return mask


class Canvas(torch.nn.Module):
    """A denoiser whose prediction is its parameter: what training does to each latent value can be seen."""

    def __init__(self):
        super().__init__()
        self.picture = torch.nn.Parameter(torch.zeros(1, 4, 16, 24))

    @property
    def dtype(self):
        return self.picture.dtype

    def forward(self, latents, return_dict):
        return (self.picture.expand_as(latents),)


def canvas_loss(**settings):
    canvas = Canvas()
    base = SimpleNamespace(
        family=replace(SD3, denoisers=("canvas",), inputs=lambda call: {"latents": call.latents}),
        pipe=SimpleNamespace(scheduler=SimpleNamespace(config={}), canvas=canvas),
        device=torch.device("cpu"),
        config=SimpleNamespace(gradient_checkpointing=False),
        module=lambda name: canvas,
    )
    return canvas, DenoisingLoss(base, ["canvas"], TrainConfig(loss={"masked_training": True, **settings}))


def canvas_batch(mask):
    latents, noise = noise_and_latents()
    return Batch(torch.ones(3), 3, noise, torch.tensor(U), PROMPTS, latents, text={}, mask=mask)


def test_what_is_outside_the_mask_stays_untouched():
    canvas, loss = canvas_loss(unmasked_weight=0.0)
    optimizer = torch.optim.Adam(canvas.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        loss(canvas_batch(left_half()))[0].backward()
        optimizer.step()
    picture = canvas.picture.detach()
    assert (picture[..., 12:] == 0).all()
    assert (picture[..., :12] != 0).all()


@pytest.mark.parametrize("by_area", [False, True])
def test_masks_weigh_the_errors_of_their_parts(by_area):
    _, loss = canvas_loss(unmasked_weight=0.25, normalize_masked_area_loss=by_area)
    latents, noise = noise_and_latents()
    mask = left_half()
    mask[2] = 1
    weight = torch.where(mask == 1, 1.0, 0.25)
    error = (noise - latents).square() * weight
    expected = error.mean((1, 2, 3)) / (weight.mean((1, 2, 3)) if by_area else 1)
    assert loss(canvas_batch(mask))[0].item() == pytest.approx(expected.sum().item(), rel=1e-5)


# --- prior preservation by the frozen model ---------------------------------------------------------------------------


def trained_lora(folder, text_trains=False, family="sd15", **settings):
    """A LoRA that has already changed the model."""
    base, config = prepared(folder, "lora", family, text_encoder={"train": text_trains}, **settings)
    torch.manual_seed(3)
    with torch.no_grad():
        for part in METHODS["lora"].components(base.family, config):
            for parameter in base.module(part).parameters():
                if parameter.requires_grad:
                    parameter.normal_(0, 0.1)
    return base, config, METHODS["lora"].loss(base, config)


def predictions(folder, base, text_trains, prompts=PROMPTS):
    """(of the model as it was, of the model with its LoRA) for the batch, by the pipelines alone."""
    latents, noise = noise_and_latents()
    timestep = torch.tensor([123, 567, 900])
    noised = DDPMScheduler.from_pretrained(folder, subfolder="scheduler").add_noise(latents, noise, timestep)
    pipe = StableDiffusionPipeline.from_pretrained(folder)
    old_text = pipe.encode_prompt(**encode_options(pipe, prompts))[0]
    text = base.pipe.encode_prompt(**encode_options(base.pipe, prompts))[0] if text_trains else old_text
    return pipe.unet(noised, timestep, old_text).sample, base.pipe.unet(noised, timestep, text).sample


@pytest.mark.parametrize("text_trains", [False, True])
def test_prior_samples_are_held_to_the_model_as_it_was(tiny_sd15, text_trains):
    base, _, loss = trained_lora(tiny_sd15, text_trains, loss={"prior_by_frozen_model": True})
    is_prior = torch.tensor([True, False, True])
    with torch.no_grad():
        old, new = predictions(tiny_sd15, base, text_trains)
        loss_sum, _, _ = loss(replace(a_batch(base, text_trains), prior=is_prior))
    _, noise = noise_and_latents()
    target = torch.where(is_prior.view(3, 1, 1, 1), old, noise)
    assert (old - new).abs().max() > 0.01  # else nothing would be compared
    assert loss_sum.item() == pytest.approx((new - target).square().mean((1, 2, 3)).sum().item(), abs=1e-5)


def test_outside_masks_the_model_is_held_to_what_it_was(tiny_sd15):
    settings = {"masked_training": True, "unmasked_weight": 0.0, "masked_prior_preservation_weight": 0.5}
    base, _, loss = trained_lora(tiny_sd15, loss=settings)
    mask = left_half()
    with torch.no_grad():
        old, new = predictions(tiny_sd15, base, False)
        loss_sum, _, _ = loss(replace(a_batch(base), mask=mask))
    _, noise = noise_and_latents()
    expected = mask * (new - noise).square() + 0.5 * (1 - mask) * (new - old).square()
    assert loss_sum.item() == pytest.approx(expected.mean((1, 2, 3)).sum().item(), abs=1e-5)


@pytest.mark.parametrize("text_trains", [False, True])
def test_captions_of_the_class_are_held_to_what_the_model_gave_before(tiny_sd15, text_trains):
    settings = {"output_preservation": True, "output_preservation_weight": 0.5}
    base, _, loss = trained_lora(tiny_sd15, text_trains, loss=settings)
    batch, preserved = a_batch(base, text_trains), torch.tensor([True, False, True])
    classes = {"preserved": preserved, "class_prompts": PROMPTS, "class_text": batch.text}
    with torch.no_grad():
        old, new = predictions(tiny_sd15, base, text_trains)
        plain, with_term = loss(batch)[0], loss(replace(batch, **classes))[0]
    assert (old - new).abs().max() > 0.01  # else nothing would be compared
    term = (new - old).square().mean((1, 2, 3)) * preserved
    assert (with_term - plain).item() == pytest.approx(0.5 * term.sum().item(), abs=1e-5)


def test_the_held_predictions_are_those_of_the_class_and_train_the_adapters(tiny_sd15):
    base, _, loss = trained_lora(tiny_sd15, loss={"output_preservation": True})
    batch = a_batch(base)
    other = {name: value.flip(0) for name, value in batch.text.items()}
    classes = {"preserved": torch.ones(3, dtype=torch.bool), "class_prompts": PROMPTS[::-1], "class_text": other}
    summed, own = loss(replace(batch, **classes))[0], loss(batch)[0]
    with torch.no_grad():
        new = loss._predict(replace(batch, text=other), *noised(loss, batch))
        with without_adapters(loss._adapted_layers):
            old = loss._predict(replace(batch, text=other), *noised(loss, batch))
    assert (summed - own).item() == pytest.approx((new - old).square().mean((1, 2, 3)).sum().item(), abs=1e-5)
    trained = [param for param in base.module("unet").parameters() if param.requires_grad]
    gradients = torch.autograd.grad(summed - own, trained, allow_unused=True)
    assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)


@pytest.mark.parametrize("text_trains", [False, True])
def test_with_the_empty_prompt_the_model_is_held_to_what_it_gave_before(tiny_sd15, text_trains):
    settings = {"blank_preservation": True, "blank_preservation_weight": 0.5}
    base, _, loss = trained_lora(tiny_sd15, text_trains, loss=settings)
    batch = a_batch(base, text_trains)
    if not text_trains:
        batch = replace(batch, fixed_text={"blank": encode_text(base.family, base.pipe, [""] * 3)})
    with torch.no_grad():
        old, new = predictions(tiny_sd15, base, text_trains, prompts=[""] * 3)
        loss._config = replace(loss._config, blank_preservation_weight=1e-9)
        plain = loss(batch)[0]
        loss._config = replace(loss._config, blank_preservation_weight=0.5)
        held = loss(batch)[0]
    assert (old - new).abs().max() > 0.01  # else nothing would be compared
    assert (held - plain).item() == pytest.approx(0.5 * (new - old).square().mean((1, 2, 3)).sum().item(), abs=1e-5)


def test_the_empty_prompt_is_zeros_where_the_pipeline_has_zeros_for_it(tiny_sdxl):
    base, _, loss = trained_lora(tiny_sdxl, family="sdxl", loss={"blank_preservation": True})
    assert is_unconditional_zero(base.family, base.pipe)
    with torch.no_grad():
        batch = replace(a_batch(base), fixed_text={"blank": encode_text(base.family, base.pipe, [""] * 3)})
        text = loss._text(loss._with_prompt(batch, "blank"))
    assert all(not value.any() for value in text.values())


def noised(loss, batch):
    return loss._objective.noise(batch.latents, batch.noise, batch.u)[:2]


def test_a_look_at_the_frozen_model_leaves_the_adapters_as_they_were(tiny_sd15):
    base, _, loss = trained_lora(tiny_sd15, loss={"prior_by_frozen_model": True})
    parameters = dict(base.module("unet").named_parameters())
    stopped = next(name for name, parameter in parameters.items() if parameter.requires_grad)
    parameters[stopped].requires_grad_(False)
    trains = {name: parameter.requires_grad for name, parameter in parameters.items()}
    batch = a_batch(base)
    with torch.no_grad():
        before = loss(batch)[0]
    loss(replace(batch, prior=torch.tensor([True, False, False])))[0].backward()
    assert {name: parameter.requires_grad for name, parameter in parameters.items()} == trains
    assert all((parameters[name].grad is not None) == flag for name, flag in trains.items())
    with torch.no_grad():
        assert torch.equal(loss(batch)[0], before)


def test_before_the_first_step_prior_samples_have_no_loss(tiny_sd15):
    base, config = prepared(tiny_sd15, "lora", loss={"prior_by_frozen_model": True})
    loss_sum, _, _ = METHODS["lora"].loss(base, config)(replace(a_batch(base), prior=torch.tensor([True] * 3)))
    assert loss_sum.item() == 0


def test_the_frozen_model_is_asked_with_the_operations_of_the_step(tiny_sd3):
    """Otherwise the first steps would train on the difference of two ways to round."""
    base, config = prepared(tiny_sd3, "lora", "sd3", loss={"prior_by_frozen_model": True})
    fuse_norms(base.module("transformer"))
    batch = a_batch(base, weight=(1.0,), rows=slice(1))
    loss_sum, _, _ = METHODS["lora"].loss(base, config)(replace(batch, prior=torch.tensor([True])))
    assert loss_sum.item() == 0


# --- what is shown ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["epsilon", "flow"])
def test_losses_are_shown_by_quarter_of_the_timesteps(objective, folder):
    base, config = prepared(folder, "full", "sd3" if objective == "flow" else "sd15")
    with torch.no_grad():
        _, _, shown = METHODS["full"].loss(base, config)(a_batch(base, weight=(1.0, 0.5, 1.0)))
        each, _ = reference_losses(objective, folder)
    expected = [each[0], 0.0, 0.5 * each[1], each[2]]  # u of 0.12, 0.57 and 0.9
    assert [shown[f"loss_t{part}"].item() for part in range(4)] == pytest.approx([float(e) for e in expected], abs=1e-5)
    assert [shown[f"loss_t{part}/count"].item() for part in range(4)] == [1, 0, 1, 1]
    assert ("cosine" in shown) == (objective == "flow")


def test_a_batch_that_only_keeps_a_rank_in_step_shows_the_same_names_and_nothing(tiny_sd3):
    base, config = prepared(tiny_sd3, "full", "sd3")
    loss = METHODS["full"].loss(base, config)
    batch = a_batch(base)
    with torch.no_grad():
        shown = loss(replace(batch, weight=torch.zeros(3), count=0))[2]
        assert shown.keys() == loss(batch)[2].keys()
    assert all(value == 0 for value in shown.values())


def test_nothing_is_shown_where_nobody_looks(tiny_sd15):
    base, config = prepared(tiny_sd15, "full", tensorboard=False)
    assert METHODS["full"].loss(base, config)(a_batch(base))[2] == {}
