"""Full fine-tuning: what is switched on trains, and nothing else moves."""

import json
import shutil

import pytest
import torch

from modules.config.DenoiserConfig import DenoiserConfig
from modules.config.errors import UserError
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
    rates = {name: part.learning_rate for name, part in FULL.components(FAMILIES["sd3"], config).items()}
    texts = ("text_encoder", "text_encoder_2", "text_encoder_3")
    assert rates == {"transformer": 1e-3, **dict.fromkeys(texts, 1e-5)}


def test_text_encoders_may_end_one_by_one(tiny_sd3):
    text = {"train": True, "stop_unit": "steps", "stop_after": 5, "stops_after": [2, 3]}
    base, config = prepared(tiny_sd3, "full", "sd3", text_encoder=text)
    ends = {name: part.stop_after for name, part in FULL.components(base.family, config).items()}
    assert ends == {"transformer": 0, "text_encoder": 2, "text_encoder_2": 3, "text_encoder_3": 5}


def test_text_encoders_may_have_rates_one_by_one(tiny_sd3):
    text = {"train": True, "learning_rate": 1e-5, "learning_rates": [2e-5, 3e-5]}
    base, config = prepared(tiny_sd3, "full", "sd3", text_encoder=text)
    rates = {name: part.learning_rate for name, part in FULL.components(base.family, config).items()}
    assert rates == {"transformer": None, "text_encoder": 2e-5, "text_encoder_2": 3e-5, "text_encoder_3": 1e-5}
    with pytest.raises(UserError, match=r"text_encoder\.learning_rates 2e-05, 3e-05: .* has 1 text encoder; leave"):
        FULL.components(FAMILIES["sd15"], config)


def test_a_part_without_a_rate_of_its_own_takes_the_optimizers():
    from modules.config.TrainConfig import TrainConfig

    assert FULL.components(FAMILIES["sd15"], TrainConfig()) == {"unet": DenoiserConfig(train=True)}


def test_of_several_text_encoders_the_chosen_ones_train(tiny_sd3):
    base, config = prepared(tiny_sd3, "full", "sd3", text_encoder={"train": True, "only": [1, 3]})
    assert list(FULL.components(base.family, config)) == ["transformer", "text_encoder", "text_encoder_3"]
    assert not any(parameter.requires_grad for parameter in base.module("text_encoder_2").parameters())
    config.text_encoder.only = [2]
    with pytest.raises(UserError, match=r"^text_encoder\.only 2: Stable Diffusion 1\.x / 2\.x has 1 text encoder; use"):
        FULL.components(FAMILIES["sd15"], config)
    config.text_encoder.train = False  # so that it has no effect
    assert list(FULL.components(FAMILIES["sd15"], config)) == ["unet"]


LAYERS = {
    "blocks": ({"layers": "blocks"}, lambda name: name.startswith(("down_blocks.", "mid_block.", "up_blocks."))),
    "attention": ({"layers": "attention"}, lambda name: any(f".to_{end}." in name for end in ("q", "k", "v", "out.0"))),
    "a block": ({"include_layers": "mid_block"}, lambda name: name.startswith("mid_block.")),
    "two patterns": (
        {"include_layers": "*.attn2.*, conv_in", "exclude_layers": "up_blocks.*"},
        lambda name: (".attn2." in name or name.startswith("conv_in.")) and not name.startswith("up_blocks."),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LAYERS)
def test_chosen_layers_train_and_no_other(case, tiny_sd15):
    settings, is_chosen = LAYERS[case]
    base, config = prepared(tiny_sd15, "full", denoiser=settings)
    before = weights(base, "unet")
    step(base, config)
    changed = {name for name, tensor in weights(base, "unet").items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in before if is_chosen(name)} != set()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"include_layers": "*.attn2.*, atn1"},
            r"^denoiser\.include_layers 'atn1' matches no layer of the unet: its layers have names such as conv_in, .*"
            r"blocks.*, conv_out\.$",
        ),
        ({"exclude_layers": "*.attn2.*, atn1"}, r"^denoiser\.exclude_layers 'atn1' matches no layer of the unet: its"),
        ({"exclude_layers": "*"}, r"^denoiser\.exclude_layers '\*' leaves no layer of the unet to train: its layers"),
    ],
)
def test_patterns_that_leave_nothing_are_refused_with_names_there_are(settings, message, tiny_sd15):
    with pytest.raises(UserError, match=message):
        prepared(tiny_sd15, "full", denoiser=settings)


def test_a_part_without_the_chosen_kind_of_layers_is_refused(tiny_sd3):
    part = {"train": True, "layers": "attention"}
    with pytest.raises(UserError, match=r"^text_encoder\.layers 'attention': the text_encoder_3 of this model has no"):
        prepared(tiny_sd3, "full", "sd3", text_encoder=part)
    prepared(tiny_sd3, "full", "sd3", text_encoder={**part, "only": [1, 2]})


def test_an_encoder_that_the_base_goes_without_does_not_train(tiny_sd3, tmp_path):
    folder = shutil.copytree(tiny_sd3, tmp_path / "no_t5")
    index = json.loads((folder / "model_index.json").read_text())
    index |= {"text_encoder_3": [None, None], "tokenizer_3": [None, None]}
    (folder / "model_index.json").write_text(json.dumps(index))
    base, config = prepared(folder, "full", "sd3", text_encoder={"train": True}, output={"format": "diffusers"})
    children = [name for name, _ in FULL.loss(base, config).named_children()]
    assert children == ["transformer", "text_encoder", "text_encoder_2"]


def test_a_pattern_may_match_in_one_of_several_text_encoders(tiny_sd3):
    part = {"train": True, "only": [1, 3], "exclude_layers": "text_model.encoder.layers.0, encoder.block.0"}
    base, _ = prepared(tiny_sd3, "full", "sd3", text_encoder=part)
    for name, layer in (("text_encoder", "text_model.encoder.layers"), ("text_encoder_3", "encoder.block")):
        trains = [any(p.requires_grad for p in block.parameters()) for block in base.module(name).get_submodule(layer)]
        assert trains[:2] == [False, True]
    part |= {"exclude_layers": "", "include_layers": "text_model.encoder"}
    message = r"^text_encoder\.include_layers 'text_model\.encoder' leaves no layer of the text_encoder_3"
    with pytest.raises(UserError, match=message):
        prepared(tiny_sd3, "full", "sd3", text_encoder=part)
