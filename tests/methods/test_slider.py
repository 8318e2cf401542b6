"""Concept sliders: the loss is the paper's, at both strengths, whatever computes the blocks again."""

from dataclasses import replace

import pytest
import torch

from modules.config.ConceptConfig import ConceptConfig
from modules.config.methods import fixed_prompts
from modules.data.Batch import Batch
from modules.diffusion.objectives import Ddpm, Flow
from modules.families.conditioning import encode_text
from modules.methods.registry import METHODS
from tests.support.prepared import prepared

PROMPTS = {"target": "a cat", "positive": "a very old cat", "negative": "a very young cat"}
U = torch.tensor([0.1234, 0.5678])


def trained(folder, family, images=True, **settings):
    """(the model with a LoRA that has already changed it, its loss); images: whether there is a concept."""
    settings = {"slider": {**PROMPTS, "eta": 2.0, "strength": 0.5, "denoising_steps": 3, **settings.pop("slider", {})},
                **settings}  # fmt: skip
    concepts = [ConceptConfig(path="pictures")] if images else []
    base, config = prepared(folder, "slider", family, concepts=concepts, **settings)
    torch.manual_seed(3)
    denoiser = base.module(base.family.denoisers[0])
    with torch.no_grad():
        for parameter in denoiser.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.1)
    return base, config, METHODS["slider"].loss(base, config)


def a_batch(base, config, paired=False):
    generator = torch.Generator().manual_seed(0)
    latents, noise, weak = (torch.randn(2, 4, 16, 24, generator=generator) for _ in range(3))
    with torch.no_grad():
        text = encode_text(base.family, base.pipe, ["a dog"] * 2)
        fixed = {r: encode_text(base.family, base.pipe, [p] * 2) for r, p in fixed_prompts(config).items()}
    given = {"paired": weak} if paired else {}
    return Batch(torch.ones(2), 2, noise, U, ["a dog"] * 2, latents, text=text, fixed_text=fixed, given=given)


def scaled(base, factor):
    """Multiplies what the LoRA adds, by its weights."""
    for name, parameter in base.module(base.family.denoisers[0]).named_parameters():
        if ".lora_B." in name:
            parameter.data.mul_(factor)


def prediction(base, loss, batch, role, noised, factor):
    """That of the model with its LoRA at a strength, which its weights have."""
    kept = {name: value.clone() for name, value in loss.state_dict().items()}
    scaled(base, factor)
    with torch.no_grad():
        made = loss._predict(replace(batch, text=batch.fixed_text[role]) if role else batch, *noised)
    loss.load_state_dict(kept)
    return made


@pytest.mark.parametrize("family", ["sd15", "sd3"])
def test_text_sliders_have_the_loss_of_equation_8_at_both_strengths(family, tiny_model):
    base, config, loss = trained(tiny_model(family), family)
    batch = a_batch(base, config)
    noised = loss._noised(batch)[:2]
    roles = ("target", "positive 0", "negative 0")
    middle, positive, negative = (prediction(base, loss, batch, role, noised, 0.0) for role in roles)
    direction = 2.0 * (positive - negative)
    more, less = (prediction(base, loss, batch, "target", noised, factor) for factor in (0.5, -0.5))
    errors = [(made - middle - sign * direction).square().mean((1, 2, 3)) for made, sign in ((more, 1), (less, -1))]
    assert (more - less).abs().max() > 0.01
    with torch.no_grad():
        assert loss(batch)[0].item() == pytest.approx((sum(errors) / 2).sum().item(), rel=1e-5)


def test_preserved_attributes_are_before_both_prompts_and_the_direction_is_their_mean(tiny_sd15):
    base, config, loss = trained(tiny_sd15, "sd15", slider={"preserve": "male, female"})
    assert fixed_prompts(config) == {
        "target": "a cat",
        "positive 0": "male a very old cat",
        "negative 0": "male a very young cat",
        "positive 1": "female a very old cat",
        "negative 1": "female a very young cat",
    }
    batch = a_batch(base, config)
    noised = loss._noised(batch)[:2]
    made = {role: prediction(base, loss, batch, role, noised, 0.0) for role in fixed_prompts(config)}
    mean = sum(made[f"positive {number}"] - made[f"negative {number}"] for number in (0, 1)) / 2
    more, _ = loss._sides(batch)
    torch.testing.assert_close(more.target, made["target"] + 2.0 * mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["sd15", "sd3"])
def test_image_pairs_train_the_strong_image_at_plus_and_the_weak_one_at_minus(family, tiny_model):
    base, config, loss = trained(tiny_model(family), family, slider={"source": "pairs"})
    batch = a_batch(base, config, paired=True)
    expected = torch.zeros(2)
    for factor, latents in ((0.5, batch.latents), (-0.5, batch.given["paired"])):
        noised, timestep, target = loss._objective.noise(latents, batch.noise, batch.u)
        own = replace(batch, given={})
        made = prediction(base, loss, own, "", (noised, timestep), factor)
        expected += (made - target).square().mean((1, 2, 3)) / 2
    with torch.no_grad():
        assert loss(batch)[0].item() == pytest.approx(expected.sum().item(), rel=1e-5)


@pytest.mark.parametrize("family", ["sd15", "sd3"])
def test_checkpointed_blocks_are_computed_again_at_their_own_strength(family, tiny_model):
    found = []
    for checkpointing in (False, True):
        base, config, loss = trained(tiny_model(family), family, model={"gradient_checkpointing": checkpointing})
        loss.train()
        loss(a_batch(base, config))[0].backward()
        found.append({name: value.grad.clone() for name, value in loss.named_parameters() if value.grad is not None})
    plain, again = found
    assert plain.keys() == again.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(again[name], gradient, rtol=1e-5, atol=1e-7, msg=name)


def test_the_strength_is_one_outside_of_the_loss(tiny_sd15):
    base, config, loss = trained(tiny_sd15, "sd15")
    scales = [dict(layer.scaling) for layer in loss._adapted_layers]
    loss._losses = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        loss(a_batch(base, config))
    assert [dict(layer.scaling) for layer in loss._adapted_layers] == scales


@pytest.mark.parametrize(
    "objective",
    [
        Ddpm(torch.linspace(0.999, 0.01, 1000, dtype=torch.float64), "epsilon"),
        Ddpm(torch.linspace(0.999, 0.01, 1000, dtype=torch.float64), "v_prediction"),
        Flow(),
    ],
    ids=["epsilon", "v", "flow"],
)
def test_a_step_by_the_true_prediction_gives_the_less_noised_latents(objective):
    clean, noise = torch.randn(2, 2, 4, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    u, lower = torch.tensor([0.9, 1.0], dtype=torch.float64), torch.tensor([0.3, 0.05], dtype=torch.float64)
    noised, _, target = objective.noise(clean, noise, u)
    made = objective.step(noised, target, u, lower)
    torch.testing.assert_close(made, objective.noise(clean, noise, lower).latents)


def test_without_images_the_base_model_denoises_the_target_prompt_with_guidance(tiny_sd3):
    base, config, loss = trained(tiny_sd3, "sd3", images=False, slider={"denoising_guidance": 2.0})
    batch = a_batch(base, config)
    latents = batch.noise
    for number in range(3):
        start, end = (1 + (batch.u - 1) * each / 3 for each in (number, number + 1))
        at = latents, 1000 * start
        target, blank = (prediction(base, loss, batch, role, at, 0.0) for role in ("target", "blank"))
        latents = latents + (end - start).view(2, 1, 1, 1) * (blank + 2.0 * (target - blank))
    more, less = loss._sides(batch)
    torch.testing.assert_close(more.noised, latents, rtol=1e-4, atol=1e-5)
    assert torch.equal(more.noised, less.noised)
    assert torch.equal(more.timestep, 1000 * batch.u)
