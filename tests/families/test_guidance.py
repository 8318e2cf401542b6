"""The scale of guidance that a distilled model takes as an input."""

import pytest
import torch

from modules.data.Batch import Batch
from modules.methods.registry import METHODS
from tests.support.prepared import prepared


@pytest.mark.parametrize(("model", "is_heeded"), [("flux1", True), ("flux1 schnell", False)])
def test_the_loss_is_that_of_the_guidance_in_the_settings_where_the_model_takes_one(model, is_heeded, tiny_model):
    generator = torch.Generator().manual_seed(0)
    latents, noise = (torch.randn(1, 4, 16, 24, generator=generator) for _ in range(2))
    batch = Batch(torch.ones(1), 1, noise, torch.tensor([0.5]), ["a cat"], latents)
    losses = []
    for guidance in (1.0, 3.5):
        base, config = prepared(tiny_model(model), "full", "flux1", diffusion={"guidance": guidance})
        losses.append(METHODS["full"].loss(base, config)(batch)[0].item())
    assert (abs(losses[0] - losses[1]) > 1e-4) == is_heeded
