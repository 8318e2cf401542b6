"""CLIP skip beyond the layers of a text encoder is refused before anything is loaded."""

import json

import pytest
import torch

from modules.config.files import config_from_values
from modules.trainer.checks import check_start
from modules.weights.errors import WeightsError
from modules.weights.load_pipeline import load_pipeline


@pytest.fixture
def check(tiny_model, tmp_path):
    def run(family, method="lora", **model):
        base = tiny_model(family)
        values = {"family": family, "method": method, "model": {"base": str(base), **model}}
        return check_start(config_from_values({**values, "concepts": [{"path": str(tmp_path)}]}), 1)

    return run


def layers_of(base, encoder="text_encoder"):
    return json.loads((base / encoder / "config.json").read_text())["num_hidden_layers"]


def test_as_many_layers_as_there_are_may_be_chosen_and_no_more(check, tiny_model):
    layers = layers_of(tiny_model("sd15"))
    check("sd15", clip_skip=layers)
    message = rf"^model\.clip_skip {layers + 1}: the model's text_encoder has {layers} layers; use {layers} at most\.$"
    with pytest.raises(WeightsError, match=message):
        check("sd15", clip_skip=layers + 1)
    check("sd15", method="vae", clip_skip=layers + 1)  # which reads no captions


def test_each_encoder_has_layers_of_its_own(check, tiny_model):
    layers = layers_of(tiny_model("sdxl"), "text_encoder_2")
    with pytest.raises(WeightsError, match=rf"model\.clip_skips\.1 12: the model's text_encoder_2 has {layers} layers"):
        check("sdxl", clip_skip=12, clip_skips=[1, 12])
    check("sdxl", clip_skip=12, clip_skips=[1, 1])  # no encoder has the value for the others


def test_a_pipeline_is_not_made_either(tiny_model):
    with pytest.raises(WeightsError, match=r"clip_skip"):
        load_pipeline(str(tiny_model("sd15")), {}, torch.device("cpu"), clip_skips=[12])
