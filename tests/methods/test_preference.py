"""Preference training has the loss of Diffusion-DPO, and knows the base model without a copy of it."""

from dataclasses import replace

import pytest
import torch

from modules.families.conditioning import encode_text
from modules.methods.registry import METHODS
from tests.methods.test_slider import U, prediction
from tests.support.prepared import prepared

BETA = 30.0


@pytest.fixture
def pair(request):
    """(the model with a LoRA that has changed it, its loss, a batch of pairs)."""
    from modules.data.Batch import Batch

    family = request.param
    folder = request.getfixturevalue("tiny_model")(family)
    base, config = prepared(folder, "preference", family, preference={"beta": BETA})
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in base.module(base.family.denoisers[0]).parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.1)
        text = encode_text(base.family, base.pipe, ["a dog"] * 2)
    chosen, noise, rejected = torch.randn(3, 2, 4, 16, 24, generator=torch.Generator().manual_seed(0))
    batch = Batch(torch.ones(2), 2, noise, U, ["a dog"] * 2, chosen, text=text, given={"paired": rejected})
    return base, METHODS["preference"].loss(base, config), batch


@pytest.mark.parametrize("pair", ["sd15", "sd3"], indirect=True)
def test_the_loss_is_that_of_diffusion_dpo(pair):
    base, loss, batch = pair
    changes = []
    for latents in (batch.latents, batch.given["paired"]):
        noised, timestep, target = loss._objective.noise(latents, batch.noise, batch.u)
        own, reference = (
            (prediction(base, loss, replace(batch, given={}), "", (noised, timestep), factor) - target)
            .square()
            .mean((1, 2, 3))
            for factor in (1.0, 0.0)
        )
        changes.append(own - reference)
    inside = -0.5 * BETA * (changes[0] - changes[1])
    expected = -torch.nn.functional.logsigmoid(inside)
    assert inside.abs().max() > 1e-3
    loss._shows_metrics = True
    with torch.no_grad():
        made, count, shown = loss(batch)
    assert (made.item(), count) == (pytest.approx(expected.sum().item(), rel=1e-4), 2)
    assert shown["chosen_likelier"].item() == (inside > 0).sum().item()


@pytest.mark.parametrize("pair", ["sd15"], indirect=True)
def test_pairs_are_learnt_until_all_chosen_images_are_likelier(pair):
    _, loss, batch = pair
    loss._shows_metrics = True
    trained = [parameter for parameter in loss.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01)
    losses = []
    for _ in range(25):
        value, count, shown = loss(batch)
        (value / count).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
    assert losses[-1] < 0.7 * losses[0]
    assert shown["chosen_likelier"].item() == 2
