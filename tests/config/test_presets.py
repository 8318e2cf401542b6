"""Presets: each is a valid start, and a name leads nowhere else."""

import pytest

from modules.config.errors import ConfigError
from modules.config.files import config_from_values
from modules.config.presets import list_presets, load_preset, merge_values
from modules.config.validation import find_problems


@pytest.mark.parametrize("preset", list_presets(), ids=lambda preset: preset.name)
def test_every_preset_needs_nothing_but_a_model_and_pictures(preset):
    config = config_from_values(load_preset(preset.name), preset.name)
    missing = {problem.path for problem in find_problems(config)} - {"model.base", "concepts"}
    assert missing == set()
    assert len(preset.description) > 10


def test_the_presets_of_stable_diffusion_15_are_there():
    assert {"sd15-lora", "sd15-full", "sd15-vae"} <= {preset.name for preset in list_presets()}
    assert load_preset("sd15-vae")["method"] == "vae"


@pytest.mark.parametrize("family", ["sd15", "sdxl", "sd3"])
def test_each_family_has_a_preset_for_lora_and_for_full_training(family):
    for method in ("lora", "full"):
        preset = load_preset(f"{family}-{method}")
        assert (preset["family"], preset["method"]) == (family, method)


def test_presets_train_flow_models_with_the_timesteps_of_their_makers():
    assert {load_preset(f"sd3-{method}")["diffusion"]["timesteps"] for method in ("lora", "full")} == {"family"}


@pytest.mark.parametrize("name", ["../secret", "secret", "/etc/hosts", "", ".", "sd15-lora.yaml", "a\0b"])
def test_a_name_can_not_leave_the_folder(tmp_path, name):
    folder = tmp_path / "presets"
    folder.mkdir()
    (tmp_path / "secret.yaml").write_text("# Not a preset\nseed: 1\n")
    (folder / "sd15-lora.yaml").write_text("# One\nseed: 1\n")
    with pytest.raises(ConfigError, match="unknown preset"):
        load_preset(name, folder)


def test_a_misspelt_name_is_put_right():
    with pytest.raises(ConfigError) as caught:
        load_preset("sd15-lroa")
    assert str(caught.value) == "unknown preset 'sd15-lroa': did you mean sd15-lora?"


@pytest.mark.parametrize("text", ["seed: 1\n", "#\nseed: 1\n", ""])
def test_a_preset_without_description_is_refused(tmp_path, text):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match="has no description"):
        list_presets(tmp_path)


def test_values_lie_over_a_preset_section_by_section_and_lists_as_a_whole():
    base = {"seed": 1, "model": {"base": "a", "weight_dtype": "float32"}, "concepts": [{"path": "a"}, {"path": "b"}]}
    over = {"model": {"base": "b"}, "concepts": [{"path": "c"}], "epochs": 3}
    assert merge_values(base, over) == {
        "seed": 1,
        "model": {"base": "b", "weight_dtype": "float32"},
        "concepts": [{"path": "c"}],
        "epochs": 3,
    }


def test_merging_changes_neither_side():
    base, over = {"model": {"base": "a"}}, {"concepts": [{"path": "a"}]}
    merged = merge_values(base, over)
    merged["model"]["base"] = "x"
    merged["concepts"][0]["path"] = "x"
    assert base == {"model": {"base": "a"}}
    assert over == {"concepts": [{"path": "a"}]}
