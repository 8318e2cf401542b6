"""Every preset is valid for every memory size and number of GPUs, and names never lead out of the folder."""

import math

import pytest

from modules.config.batch_size import global_batch, learning_rate_factor
from modules.config.errors import ConfigError
from modules.config.files import config_from_values
from modules.config.image_sizes import sample_size
from modules.config.methods import METHODS
from modules.config.presets import (
    MEMORY_SIZES,
    gpu_counts,
    has_variants,
    list_presets,
    load_preset,
    merge_values,
    variant_name,
    why_not_offered,
)
from modules.config.validation import find_problems
from modules.families.registry import FAMILIES

VARIED = [preset.name for preset in list_presets() if has_variants(preset.name)]


def config_of(name: str):
    return config_from_values(load_preset(name), name)


def sizes_of(name: str) -> list[int]:
    return [memory for memory in MEMORY_SIZES if not why_not_offered(name, memory)]


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
def test_each_family_has_a_preset_for_each_method(family):
    for method in ("lora", "full", "embedding", "vae"):
        preset = load_preset(f"{family}-{method}")
        assert (preset["family"], preset["method"]) == (family, method)


def test_presets_train_flow_models_with_the_timesteps_of_their_makers():
    timesteps = {load_preset(f"sd3-{method}")["diffusion"]["timesteps"] for method in ("lora", "full", "embedding")}
    assert timesteps == {"trained"}


@pytest.mark.parametrize("name", VARIED)
def test_every_variant_needs_nothing_but_pictures(name):
    for memory in (None, *sizes_of(name)):
        for num_gpus in (1, *gpu_counts(name)):
            variant = variant_name(name, memory, num_gpus)
            assert {problem.path for problem in find_problems(config_of(variant))} <= {"concepts"}, variant


@pytest.mark.parametrize("name", VARIED)
def test_the_memory_of_a_gpu_changes_neither_batch_nor_rate_nor_steps(name):
    def learnt(config) -> tuple:
        return global_batch(config, 1), config.optimizer.learning_rate, config.epochs, config.max_steps, config.data

    whole = learnt(config_of(name))
    assert sizes_of(name)
    for memory in sizes_of(name):
        assert learnt(config_of(variant_name(name, memory))) == whole


@pytest.mark.parametrize(("name", "num_gpus"), [(name, count) for name in VARIED for count in gpu_counts(name)])
def test_on_several_gpus_a_run_goes_through_as_many_pictures(name, num_gpus):
    for memory in (None, *sizes_of(name)):
        one, several = (config_of(variant_name(name, memory, count)) for count in (1, num_gpus))
        assert (several.enable_multi_gpu, several.world_size, several.epochs) == (True, num_gpus, one.epochs)
        if one.batch_size_mode == "global":
            assert global_batch(several, num_gpus) == global_batch(one, 1)
            assert learning_rate_factor(several, num_gpus) == 1
        else:
            assert global_batch(several, num_gpus) == num_gpus * global_batch(one, 1)
            assert learning_rate_factor(several, num_gpus) == math.sqrt(num_gpus)
            if one.max_steps:
                seen = several.max_steps * global_batch(several, num_gpus)
                assert 0 <= seen - one.max_steps * global_batch(one, 1) < global_batch(several, num_gpus)


@pytest.mark.parametrize("name", VARIED)
def test_a_preset_samples_by_itself_at_the_size_it_trains_at_with_prompts_from_captions(name):
    config = config_of(name)
    # captions play no part in training an autoencoder, and some licenses ask for a package where images are made
    if not METHODS[config.method].uses_denoiser or FAMILIES[config.family].sampling_package:
        assert not config.sampling.makes_samples
        return
    sampling = config.sampling
    assert (sampling.every, sampling.unit, sampling.at_end) == (250, "steps", True)
    assert {(sample.prompt, sample.width, sample.height) for sample in sampling.samples} == {("", None, None)}
    for memory in sizes_of(name):
        smaller = config_of(variant_name(name, memory))
        assert [(sample.prompt, sample.steps) for sample in smaller.sampling.samples] == [
            (sample.prompt, sample.steps) for sample in sampling.samples
        ]
        sizes = [sample_size(sample, smaller.data) for sample in smaller.sampling.samples]
        assert min(map(min, sizes)) >= config.data.resolution / 2


def test_a_variant_lies_over_its_preset():
    assert load_preset("sdxl-lora-12gb") == load_preset("sdxl-lora")
    small = load_preset("sdxl-lora-8gb-x4")
    assert (small["batch_size"], small["gradient_accumulation_steps"], small["max_steps"]) == (1, 2, 500)
    assert small["model"] == load_preset("sdxl-lora")["model"]
    assert load_preset("sdxl-lora-24gb")["model"]["gradient_checkpointing"] is False


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sd3-full-8gb", "preset sd3-full-8gb is not offered: The text encoders need"),
        ("sd3-full-12gb-x2", "preset sd3-full-12gb is not offered: The text encoders need"),
        ("sdxl-lora-10gb", "not made for GPUs of 10 GB: use one of 8gb, 12gb, 16gb, 24gb, 32gb, 48gb, 80gb."),
        ("sdxl-lora-x3", "not made for 3 GPUs: use one of x2, x4, x8 and set world_size."),
        ("qwen_image-full-x2", "not made for 2 GPUs: optimizer.fused_backward works on one GPU; use qwen_image-full."),
        ("demo-8gb", "preset demo is made for no size of GPU: use it as demo."),
        ("sdxl-lroa-8gb", "unknown preset 'sdxl-lroa-8gb': did you mean sdxl-lora?"),
    ],
)
def test_a_variant_that_is_not_offered_says_why(name, message):
    with pytest.raises(ConfigError) as caught:
        load_preset(name)
    assert message in str(caught.value)


def test_every_preset_has_variants_but_the_demos():
    assert {preset.name for preset in list_presets()} - set(VARIED) == {"demo", "video_demo"}


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
