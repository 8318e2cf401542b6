"""Full fine-tuning: what is switched on trains, and nothing else moves."""

import json
import shutil

import pytest
import torch

from modules.data.Batch import Batch
from modules.families.registry import FAMILIES
from modules.methods.registry import METHODS
from tests.support.prepared import prepared

FULL = METHODS["full"]
PARTS = {
    "denoiser only": (True, False, {"unet"}),
    "text encoder only": (False, True, {"text_encoder"}),
    "both": (True, True, {"unet", "text_encoder"}),
}


def step(base, config, rate=0.01):
    generator = torch.Generator().manual_seed(0)
    latents, noise = (torch.randn(2, 4, 16, 24, generator=generator) for _ in range(2))
    prompts = ["a cat", "the dog"]
    batch = Batch(torch.ones(2), 2, noise, torch.tensor([0.2, 0.7]), prompts, latents=latents)
    loss = FULL.loss(base, config)
    optimizer = torch.optim.AdamW([p for p in loss.parameters() if p.requires_grad], lr=rate)
    loss(batch)[0].backward()
    optimizer.step()


def weights(base, part):
    return {name: tensor.clone() for name, tensor in base.module(part).state_dict().items()}


@pytest.mark.parametrize("case", PARTS)
def test_the_parts_that_are_switched_on_train_and_no_other(case, tiny_sd15):
    denoiser, text_encoder, expected = PARTS[case]
    base, config = prepared(tiny_sd15, "full", denoiser={"train": denoiser}, text_encoder={"train": text_encoder})
    assert set(FULL.components(base.family, config)) == expected
    before = {part: weights(base, part) for part in ("unet", "text_encoder", "vae")}
    step(base, config)
    for part, old in before.items():
        changed = [name for name, tensor in weights(base, part).items() if not torch.equal(tensor, old[name])]
        assert all(p.requires_grad == (part in expected) for p in base.module(part).parameters())
        assert base.module(part).training == (part in expected)
        assert len(changed) == (len(old) if part in expected else 0)


def test_each_part_has_the_learning_rate_of_its_setting():
    from modules.config.TrainConfig import TrainConfig

    config = TrainConfig(
        family="sd3", denoiser={"learning_rate": 1e-3}, text_encoder={"train": True, "learning_rate": 1e-5}
    )
    rates = FULL.components(FAMILIES["sd3"], config)
    texts = ("text_encoder", "text_encoder_2", "text_encoder_3")
    assert rates == {"transformer": 1e-3, **dict.fromkeys(texts, 1e-5)}


def test_a_part_without_a_rate_of_its_own_takes_the_optimizers():
    from modules.config.TrainConfig import TrainConfig

    assert FULL.components(FAMILIES["sd15"], TrainConfig()) == {"unet": None}


def test_an_encoder_that_the_base_goes_without_does_not_train(tiny_sd3, tmp_path):
    folder = shutil.copytree(tiny_sd3, tmp_path / "no_t5")
    index = json.loads((folder / "model_index.json").read_text())
    index |= {"text_encoder_3": [None, None], "tokenizer_3": [None, None]}
    (folder / "model_index.json").write_text(json.dumps(index))
    base, config = prepared(folder, "full", "sd3", text_encoder={"train": True}, output={"format": "diffusers"})
    children = [name for name, _ in FULL.loss(base, config).named_children()]
    assert children == ["transformer", "text_encoder", "text_encoder_2"]
