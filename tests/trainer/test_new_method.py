"""Adding a method takes one file and its facts, and no change elsewhere."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from modules.config.errors import ConfigError
from modules.config.methods import METHODS
from modules.trainer.checks import check_start
from tests.support.fork_server import ForkedScript
from tests.support.waiting import PATIENCE_SECONDS

SCRIPT = Path(__file__).resolve().parents[1] / "support" / "new_method" / "train_biases.py"


def test_a_new_method_trains_some_steps(make_config, config_file, tmp_path, tiny_sd15):
    output = tmp_path / "output.txt"
    command = [str(SCRIPT), "--config", str(config_file(make_config("max_steps=3"))), "--set", "method=biases"]
    script = ForkedScript(command, os.environ, output, imports_anew=True)
    assert script.wait(PATIENCE_SECONDS) == 0, output.read_text(encoding="utf-8")
    lines = (tmp_path / "run" / "events" / "rank-0.jsonl").read_text(encoding="utf-8").splitlines()
    assert [event["step"] for event in map(json.loads, lines) if event["type"] == "step"] == [1, 2, 3]
    (saved,) = (tmp_path / "run" / "models").glob("*.safetensors")
    before = load_file(tiny_sd15 / "unet" / "diffusion_pytorch_model.safetensors")
    trained = load_file(saved)
    assert trained.keys() == {name for name in before if name.endswith(".bias")}
    assert any(not value.equal(before[name]) for name, value in trained.items())


def test_a_family_that_the_method_cannot_train_is_refused_before_the_model_is_loaded(make_config, monkeypatch):
    monkeypatch.setitem(METHODS, "full", replace(METHODS["full"], trainable=lambda family: ()))
    with pytest.raises(ConfigError, match="method 'full' can't train Stable Diffusion 1"):
        check_start(make_config("method=full"), 1)


def test_a_method_for_text_encoders_alone_asks_to_train_these(make_config, monkeypatch):
    only_text = replace(METHODS["full"], trainable=lambda family: family.trainable_text_encoders)
    monkeypatch.setitem(METHODS, "full", only_text)
    with pytest.raises(ConfigError, match=r"can't train the enabled parts: enable text_encoder\.train"):
        check_start(make_config("method=full"), 1)
    check_start(make_config("method=full", "text_encoder.train=true"), 1)
