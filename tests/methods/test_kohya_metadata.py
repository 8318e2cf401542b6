"""The fields of kohya's scripts in LoRA files."""

from __future__ import annotations

import json

import pytest

from modules.methods.kohya_metadata import _base_name, kohya_metadata
from modules.methods.registry import METHODS
from modules.weights.safe import METADATA, read_header
from tests.support.prepared import prepared


def test_the_files_of_a_lora_tell_its_settings_and_no_path(tiny_sd15, tmp_path):
    settings = {
        "lora": {"rank": 4, "alpha": 2.0, "targets": "linear_conv", "conv_rank": 2, "plus_ratio": 8.0, "max_norm": 1.0},
        "optimizer": {"learning_rate": 1e-3},
        "schedule": {"name": "cosine_restarts", "warmup": 10},
        "text_encoder": {"train": True, "learning_rate": 1e-4},
        "diffusion": {"offset_noise": 0.1},
        "loss": {"weighting": "min_snr_gamma", "snr_gamma": 5.0},
        "output": {"format": "both", "name": "cats"},
    }
    base, config = prepared(tiny_sd15, "lora", **settings)
    files = METHODS["lora"].save(base, config, tmp_path, "cats", {"steps": "7"})
    assert len(files) == 2
    for file in files:
        held = read_header(file)[METADATA]
        expected = {
            "ss_base_model_version": "sd_v1",
            "ss_v2": "False",
            "ss_sd_model_name": tiny_sd15.name,
            "ss_output_name": "cats",
            "ss_network_module": "networks.lora",
            "ss_network_dim": "4",
            "ss_network_alpha": "2.0",
            "ss_scale_weight_norms": "1.0",
            "ss_learning_rate": "0.001",
            "ss_unet_lr": "0.001",
            "ss_text_encoder_lr": "0.0001",
            "ss_lr_scheduler": "cosine_with_restarts",
            "ss_lr_warmup_steps": "10",
            "ss_noise_offset": "0.1",
            "ss_min_snr_gamma": "5.0",
            "ss_loss_type": "l2",
            "ss_steps": "7",
        }
        assert {name: held.get(name) for name in expected} == expected
        args = json.loads(held["ss_network_args"])
        assert args == {"conv_dim": "2", "conv_alpha": "2.0", "loraplus_lr_ratio": "8.0"}
        assert not any(str(tiny_sd15.parent) in text or str(tmp_path) in text for text in held.values())


def test_alpha_is_the_one_that_the_rank_divides_and_kinds_are_named(tiny_sd15):
    base, config = prepared(tiny_sd15, "lora", lora={"rank": 4, "alpha": 2.0, "rslora": True})
    assert kohya_metadata(base, config)["ss_network_alpha"] == "4.0"  # 2 / sqrt(4) = 4 / 4
    assert "ss_noise_offset" not in kohya_metadata(base, config)
    config.lora.rslora, config.lora.adapter = False, "lokr"
    held = kohya_metadata(base, config)
    assert (held["ss_network_module"], json.loads(held["ss_network_args"])) == ("lycoris.kohya", {"algo": "lokr"})
    config.lora.start_from = "cats.safetensors"  # whose rank it keeps
    assert not any("network" in name for name in kohya_metadata(base, config))


@pytest.mark.parametrize("adapter", ["lora", "loha"])
def test_the_file_of_each_expert_names_the_model_that_it_was_trained_on(tiny_model, tmp_path, adapter):
    folder = tiny_model("wan22_a14b")
    base, config = prepared(folder, "lora", "wan22_a14b", lora={"adapter": adapter}, output={"format": "both"})
    for high, low in (("", ""), ("high.gguf", ""), ("", "low.gguf"), ("high.gguf", "low.gguf")):
        config.model.denoiser, config.model.denoiser_2 = high, low
        files = METHODS["lora"].save(base, config, tmp_path, "cats", {})
        held = {(file.stem.endswith("_2"), read_header(file)[METADATA]["ss_sd_model_name"]) for file in files}
        assert held == {(False, high or folder.name), (True, low or folder.name)}


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("/home/anna/models/cat.safetensors", "cat.safetensors"),
        ("C:\\models\\sdxl\\", "sdxl"),
        ("stabilityai/stable-diffusion-xl-base-1.0@main", "stabilityai/stable-diffusion-xl-base-1.0@main"),
    ],
)
def test_a_base_model_is_named_without_its_path(base, name):
    assert _base_name(base) == name
