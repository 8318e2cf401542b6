"""What scripts/sample.py is asked for to try a trained model."""

from dataclasses import replace
from pathlib import Path

import pytest

from modules.config.ModelConfig import ModelConfig
from modules.config.SampleConfig import SampleConfig
from modules.config.SamplingConfig import SamplingConfig
from modules.config.TrainConfig import TrainConfig
from modules.ui.models.RunState import SamplePicture, SavedModel
from modules.ui.models.trained_images import ImageWish, first_wish, newest_model, run_samples_script, sample_options
from scripts import sample_run
from scripts.sample import parse

WISH = ImageWish("a cat", "a dog", 7, 64, 32, 20, 4.5)
LORA = [Path("models/cat_transformer.safetensors"), Path("models/cat_transformer_2.safetensors")]


def options_of(method: str, model: list[Path], strength: float | None):
    settings = ModelConfig(base="base", config_folder="folder", clip_skip=2, text_chunks=3)
    config = TrainConfig(method=method, model=settings)
    return parse(sample_options(config, model, WISH, strength, Path("out")))


def test_the_wish_is_passed_on():
    args = options_of("lora", LORA, None)
    assert (args.prompt, args.negative_prompt, args.seed, args.width, args.height) == (["a cat"], "a dog", 7, 64, 32)
    assert (args.steps, args.guidance, args.config, args.out) == (20, 4.5, "folder", "out")
    assert (args.clip_skip, args.text_chunks) == ([2], 3)


@pytest.mark.parametrize(
    ("method", "model", "trained"),
    [
        ("lora", LORA, ("base", [f"{path}:0.80" for path in LORA], [])),
        ("embedding", [Path("cat.safetensors")], ("base", [], ["cat.safetensors"])),
        ("full", [Path("models/cat")], ("models/cat", [], [])),
        ("vae", [Path("models/cat")], ("models/cat", [], [])),
    ],
)
def test_what_was_trained_is_used_or_left_out(method, model, trained):
    args = options_of(method, model, 0.8)
    assert (args.base, args.lora, args.embedding) == trained
    args = options_of(method, model, None)
    assert (args.base, args.lora, args.embedding) == ("base", [], [])


def test_parts_of_its_own_go_with_the_base_and_not_with_a_whole_model():
    """A model saved whole has them already."""
    settings = ModelConfig(base="base", vae="vae.safetensors", denoiser="unet.safetensors", text_encoders=["a", "b"])
    own = ("vae.safetensors", "unet.safetensors", ["a", "b"])
    for method, strength, expected in (("lora", 1.0, own), ("full", 1.0, ("", "", [])), ("full", None, own)):
        config = TrainConfig(method=method, model=settings)
        args = parse(sample_options(config, [Path("m")], WISH, strength, Path("out")))
        assert (args.vae, args.denoiser, args.text_encoder) == expected
    settings = replace(settings, denoiser_2="low.safetensors")
    for family, expected in (("wan22_a14b", "low.safetensors"), ("wan21", "")):
        config = TrainConfig(family=family, model=settings)
        assert parse(sample_options(config, [Path("m")], WISH, 1.0, Path("out"))).denoiser_2 == expected


def test_the_model_saved_last_is_tried_in_the_format_of_diffusers():
    paths = ["cat-100.safetensors", "cat.safetensors", "cat_kohya.safetensors"]
    saved = [SavedModel(step, Path(path)) for step, path in zip((100, 200, 200), paths, strict=True)]
    assert newest_model(saved) == [Path("cat.safetensors")]
    assert newest_model(saved[2:]) == [Path("cat_kohya.safetensors")]
    assert newest_model([]) == []
    experts = ["cat", "cat_transformer_2", "cat_kohya", "cat_kohya_transformer_2"]
    saved = [SavedModel(200, Path(f"{name}.safetensors")) for name in experts]
    assert newest_model(saved) == [Path("cat.safetensors"), Path("cat_transformer_2.safetensors")]


def test_the_first_wish_is_what_the_run_samples():
    config = TrainConfig()
    sampling = SamplingConfig(samples=[SampleConfig(prompt="off", enabled=False), SampleConfig(prompt="a fox", seed=3)])
    wish = first_wish(replace(config, sampling=sampling), [])
    assert (wish.prompt, wish.seed, wish.guidance) == ("a fox", 3, 7.5)
    seen = [SamplePicture(1, "a cat", Path("x.png"))]
    for samples in ([], [SampleConfig()]):  # a prompt from a caption has no text in the settings
        assert first_wish(replace(config, sampling=SamplingConfig(samples=samples)), seen).prompt == "a cat"


def test_a_reference_is_given_to_a_model_that_takes_one():
    wish = replace(WISH, reference="before.png")
    for family, expected in (("flux1_kontext", ["before.png"]), ("sd15", [])):
        options = sample_options(TrainConfig(family=family), [Path("m")], wish, 1.0, Path("out"))
        assert parse(options).reference == expected
    wish = replace(wish, last_frame="after.png")
    for family, expected in (("wan22_i2v_a14b", ["before.png", "after.png"]), ("wan21_i2v", ["before.png"])):
        options = sample_options(TrainConfig(family=family), [Path("m")], wish, 1.0, Path("out"))
        assert parse(options).reference == expected


def test_the_samples_of_a_run_are_asked_for_with_all_files_of_its_model():
    args = sample_run.parse(run_samples_script(Path("run"), LORA, 200, TrainConfig())._options)
    assert (args.run, args.model, args.step) == ("run", [str(path) for path in LORA], 200)
