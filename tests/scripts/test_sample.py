"""scripts/sample.py makes pictures from a base and LoRAs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, StableDiffusionPipeline, UNet2DConditionModel
from peft import LoraConfig
from PIL import Image
from safetensors import safe_open
from transformers import CLIPTextModel

from modules.config.errors import UserError
from modules.families.sd15 import SD15
from modules.weights.convert import convert
from modules.weights.embedding_files import save_embedding
from modules.weights.lora_files import AdaptedModel, save_lora
from modules.weights.safe import load_tensors, save_tensors
from scripts import lora as lora_tools
from scripts import sample
from scripts.lora_and_strength import lora_and_strength
from tests.support.RankPool import RankPool
from tests.support.sampling_scenarios import sample_on_gpu


def run(out, base, *options):
    arguments = ["--base", str(base), "--out", str(out), "--steps", "2", "--width", "32", "--height", "64", *options]
    assert sample.main(arguments) == 0
    return {path.name: np.asarray(Image.open(path), dtype=int) for path in sorted(out.iterdir())}


@pytest.fixture
def one_rank(tmp_path):
    pool = RankPool(1, tmp_path)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def loras(tiny_sd15, tmp_path_factory):
    """Two LoRA files of the tiny model that change what it draws."""
    files = []
    for number in range(2):
        pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
        pipe.unet.add_adapter(LoraConfig(r=2, lora_alpha=8, target_modules=["to_q", "to_v", "conv1"]))
        torch.manual_seed(number)
        for name, param in pipe.unet.named_parameters():
            if "lora_B" in name:
                param.data.normal_(0, 0.3)
        stem = tmp_path_factory.mktemp("loras") / f"lora{number}"
        files += save_lora(stem, AdaptedModel({"unet": pipe.unet}, StableDiffusionPipeline))
    return files


def test_prompts_and_seeds_give_a_file_each(tiny_sd15, tmp_path):
    pictures = run(tmp_path / "out", tiny_sd15, "--prompt", "a cat", "--prompt", "a/dog", "--count", "2", "--seed", "7")
    assert len(pictures) == 4
    assert {"000_a cat_seed7.png", "001_a cat_seed8.png"} <= set(pictures)
    assert all(picture.shape == (64, 32, 3) for picture in pictures.values())


def test_a_picture_does_not_depend_on_its_batch(tiny_sd15, tmp_path):
    options = ("--prompt", "a cat", "--count", "3")
    alone = run(tmp_path / "alone", tiny_sd15, *options, "--batch-size", "1")
    together = run(tmp_path / "together", tiny_sd15, *options, "--batch-size", "3")
    assert all(abs(alone[name] - together[name]).max() <= 1 for name in alone)


def test_every_lora_changes_the_picture(tiny_sd15, loras, tmp_path):
    prompt = ("--prompt", "a cat")
    plain = run(tmp_path / "plain", tiny_sd15, *prompt)
    first = run(tmp_path / "first", tiny_sd15, *prompt, "--lora", str(loras[0]))
    second = run(tmp_path / "second", tiny_sd15, *prompt, "--lora", str(loras[1]))
    both = run(tmp_path / "both", tiny_sd15, *prompt, "--lora", str(loras[0]), "--lora", str(loras[1]))
    pictures = [next(iter(one.values())) for one in (plain, first, second, both)]
    for number, one in enumerate(pictures):
        for other in pictures[number + 1 :]:
            assert abs(one - other).max() > 2


def test_a_lora_is_as_strong_as_it_says(tiny_sd15, loras, tmp_path):
    tensors = load_tensors(loras[0])
    halved = {name: tensor / 2 if ".lora_B." in name else tensor for name, tensor in tensors.items()}
    assert sum(".lora_B." in name for name in tensors) == len(tensors) / 2
    with safe_open(loras[0], "pt") as file:
        save_tensors(tmp_path / "halved.safetensors", halved, file.metadata())
    pictures = {}
    for name, lora in (("none", f"{loras[0]}:0"), ("half", f"{loras[0]}:0.5"), ("halved", "halved.safetensors")):
        lora = str(tmp_path / lora)
        (pictures[name],) = run(tmp_path / name, tiny_sd15, "--prompt", "a cat", "--lora", lora).values()
    (plain,) = run(tmp_path / "plain", tiny_sd15, "--prompt", "a cat").values()
    assert (pictures["none"] == plain).all()
    assert abs(pictures["half"] - plain).max() > 1
    assert abs(pictures["half"] - pictures["halved"]).max() <= 1  # rounding


def test_a_comparison_has_the_images_that_two_calls_make(tiny_sd15, loras, tmp_path):
    options = ("--prompt", "a cat", "--count", "2", "--lora", f"{loras[0]}:0.5", "--lora", str(loras[1]))
    plain = run(tmp_path / "plain", tiny_sd15, *options[:4])
    trained = run(tmp_path / "trained", tiny_sd15, *options)
    both = run(tmp_path / "both", tiny_sd15, *options, "--compare")
    expected = [*plain.values(), *trained.values()]
    assert [name[:3] for name in both] == ["000", "001", "002", "003"]
    assert all((one == other).all() for one, other in zip(both.values(), expected, strict=True))
    assert abs(expected[0] - expected[2]).max() > 2


def test_several_strengths_have_the_images_that_a_call_for_each_makes(tiny_sd15, loras, tmp_path):
    options = ("--prompt", "a cat")
    alone = [run(tmp_path / s, tiny_sd15, *options, "--lora", f"{loras[0]}:{s}") for s in ("-1", "0.5")]
    strip = run(tmp_path / "strip", tiny_sd15, *options, "--lora", str(loras[0]), "--compare", "--strengths=-1,0.5")
    _, *made = strip.values()
    assert all((one == other).all() for one, other in zip(made, (p for d in alone for p in d.values()), strict=True))
    assert abs(made[0] - made[1]).max() > 2


def test_a_lora_of_which_a_part_can_not_be_applied_makes_images_with_a_warning_and_is_not_merged(
    tiny_model, tmp_path, capsys
):
    file, layer = tmp_path / "flux.safetensors", "lora_unet_double_blocks_0_img_attn_proj"
    halves = {f"{layer}.lora_{half}.weight": torch.ones(32, 32) for half in ("down", "up")}
    save_tensors(file, {**halves, f"{layer}.diff_b": torch.ones(32)})
    assert len(run(tmp_path / "out", tiny_model("flux1"), "--prompt", "a cat", "--lora", str(file))) == 1
    assert f"can't apply 1 of its tensors, such as '{layer}.diff_b': images differ" in capsys.readouterr().err
    target = tmp_path / "merged"
    assert lora_tools.main(["merge", str(tiny_model("flux1")), str(target), "--lora", str(file)]) == 2
    assert "which would be lost; choose a LoRA without.\n" in capsys.readouterr().err
    assert not target.exists()


def test_a_strength_is_told_from_a_file_name(tmp_path):
    assert lora_and_strength("cat.safetensors:0.8") == ("cat.safetensors", 0.8)
    assert lora_and_strength("C:\\loras\\cat.safetensors") == ("C:\\loras\\cat.safetensors", 1.0)
    (tmp_path / "cat:2").write_bytes(b"")
    assert lora_and_strength(str(tmp_path / "cat:2")) == (str(tmp_path / "cat:2"), 1.0)


def test_what_is_no_strength_of_a_lora_that_is_there_is_refused(tmp_path):
    (tmp_path / "cat.safetensors").touch()
    with pytest.raises(UserError, match="'abc' is not a strength; write a number"):
        lora_and_strength(str(tmp_path / "cat.safetensors:abc"))


@pytest.mark.parametrize("number", ["2", "-0.3", ".5", "-.5", "+1.", "1e-1", "2.5E+0"])
def test_a_strength_may_be_any_decimal_number(number):
    assert lora_and_strength(f"cat.safetensors:{number}") == ("cat.safetensors", float(number))


@pytest.mark.parametrize(
    "text", ["cat:nan", "cat:inf", "cat:1e999", "cat:1_0", "cat:.", "cat:e1", "cat:", "cat: 1", ":1"]
)
def test_what_is_no_finite_decimal_number_is_part_of_the_file_name(text):
    assert lora_and_strength(text) == (text, 1.0)


def test_the_word_of_an_embedding_changes_the_picture(tiny_sd15, tmp_path):
    file = tmp_path / "thing.safetensors"
    save_embedding(file, SD15, "thing", {"text_encoder": torch.randn(2, 32)})
    prompt = ("--prompt", "a thing")
    (plain,) = run(tmp_path / "plain", tiny_sd15, *prompt).values()
    (taught,) = run(tmp_path / "taught", tiny_sd15, *prompt, "--embedding", str(file)).values()
    assert abs(plain - taught).max() > 2


def test_a_single_file_and_a_model_without_its_t5_make_pictures(tiny_sd15, tiny_sd35, tmp_path):
    file = convert(str(tiny_sd15), tmp_path / "x.safetensors")
    options = ("--prompt", "a cat", "--guidance", "1")
    (of_folder,) = run(tmp_path / "folder", tiny_sd15, *options).values()
    (of_file,) = run(tmp_path / "file", file, "--config", str(tiny_sd15), *options).values()
    assert np.array_equal(of_folder, of_file)
    assert len(run(tmp_path / "sd35", tiny_sd35, *options)) == 1


def test_a_second_call_replaces_no_picture(tiny_sd15, tmp_path):
    for _ in range(2):
        pictures = run(tmp_path, tiny_sd15, "--prompt", "a cat")
    assert sorted(pictures) == ["000_a cat_seed42.png", "001_a cat_seed42.png"]


def test_pictures_in_less_precision_differ_by_little(tiny_sd15, loras, tmp_path):
    options = ("--prompt", "a cat", "--lora", str(loras[0]))
    (exact,) = run(tmp_path / "exact", tiny_sd15, *options, "--dtype", "float32").values()
    (half,) = run(tmp_path / "half", tiny_sd15, *options, "--dtype", "bfloat16").values()
    assert 0 < abs(exact - half).mean() < 12


def test_weights_are_loaded_in_the_precision_that_they_are_used_in(tiny_sd15, tmp_path, monkeypatch):
    """In float32, a denoiser would need twice the memory for a moment."""
    loaded = {}
    for kind in (UNet2DConditionModel, CLIPTextModel, AutoencoderKL):

        def recorded(cls, *args, load=kind.from_pretrained.__func__, **options):
            part = load(cls, *args, **options)
            loaded[cls] = part.dtype
            return part

        monkeypatch.setattr(kind, "from_pretrained", classmethod(recorded))
    run(tmp_path, tiny_sd15, "--prompt", "a cat", "--dtype", "bfloat16")
    assert set(loaded.values()) == {torch.bfloat16}
    assert len(loaded) == 3


def test_text_encoders_have_left_the_gpu_when_the_denoiser_comes(tiny_sd15, tmp_path, one_rank):
    prompts = ("--prompt", "a cat", "--prompt", "a dog", "--batch-size", "1")
    arguments = ["--base", str(tiny_sd15), "--steps", "2", "--width", "32", "--height", "64", *prompts]
    (there,) = one_rank.run(sample_on_gpu, arguments=[*arguments, "--out", str(tmp_path / "gpu"), "--dtype", "float32"])
    assert there["code"] == 0
    assert there["together"]["CLIPTextModel"] == ["CLIPTextModel"]
    assert "CLIPTextModel" not in there["together"]["UNet2DConditionModel"]
    here = run(tmp_path / "cpu", tiny_sd15, *prompts)
    images = {path.name: np.asarray(Image.open(path), dtype=int) for path in (tmp_path / "gpu").iterdir()}
    assert images.keys() == here.keys()
    assert all(abs(images[name] - image).max() <= 1 for name, image in here.items())


def test_a_missing_config_folder_is_told_by_the_name_of_the_option(tiny_sd15, tmp_path, capsys):
    file = convert(str(tiny_sd15), tmp_path / "x.safetensors")
    arguments = ["--base", str(file), "--config", str(tmp_path / "none"), "--prompt", "x", "--out", str(tmp_path)]
    assert sample.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"--config {str(tmp_path / 'none')!r}: no such folder")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no tensors"), "is not a safetensors file"),
        (lambda folder: cut(folder / "model.safetensors"), "is a damaged safetensors file"),
        (lambda folder: edit(folder / "config.json", hidden_size=64), "shapes of its tensors differ from its config"),
        (lambda folder: (folder / "config.json").write_text("{"), "is not readable JSON"),
    ],
)
def test_a_base_with_a_broken_text_encoder_is_one_sentence(damage, reason, tiny_sd15, tmp_path, capsys):
    base = shutil.copytree(tiny_sd15, tmp_path / "base")
    damage(base / "text_encoder")
    assert sample.main(["--base", str(base), "--prompt", "x", "--out", str(tmp_path / "out")]) == 2
    *_, sentence = capsys.readouterr().err.splitlines()
    assert sentence.startswith("base ")
    assert reason in sentence
    assert sentence.endswith(".")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def edit(path: Path, **values) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_missing_base_is_one_sentence(tmp_path, capsys):
    assert sample.main(["--base", str(tmp_path / "none"), "--prompt", "x", "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "no such folder" in error
    assert error.count("\n") == 1


def test_too_little_memory_is_one_sentence(tiny_sd15, tmp_path, capsys, monkeypatch):
    def fail(pipe, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.")

    monkeypatch.setattr(StableDiffusionPipeline, "__call__", fail)
    assert sample.main(["--base", str(tiny_sd15), "--prompt", "x", "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("The GPU's memory is too small: lower --batch-size")
    assert error.count("\n") == 1


@pytest.mark.parametrize("out", ["", "a file"])
def test_a_folder_that_can_not_be_written_is_refused_before_the_model_is_loaded(out, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a file").touch()
    assert sample.main(["--base", "no model", "--prompt", "x", "--out", out]) == 2
    error = capsys.readouterr().err
    assert error.startswith("--out ")
    assert error.count("\n") == 1


def test_a_comparison_without_a_lora_is_refused(tmp_path, capsys):
    arguments = ["--base", "base", "--prompt", "x", "--out", str(tmp_path)]
    for option in ("--compare", "--strengths=1,2"):
        assert sample.main([*arguments, option]) == 2
        assert f"{option.partition('=')[0]} without --lora" in capsys.readouterr().err


def test_a_lora_that_is_given_twice_is_refused(tmp_path, capsys):
    arguments = ["--base", "no model", "--prompt", "x", "--out", str(tmp_path)]
    assert sample.main([*arguments, "--lora", "cat.safetensors", "--lora", "cat.safetensors:0.5"]) == 2
    assert capsys.readouterr().err == (
        "--lora 'cat.safetensors' is given twice: name it once, with the strength that you want.\n"
    )


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--seed", "1" + 18 * "0", "has more than 18 digits: choose a smaller number"),
        ("--seed", "-1" + 18 * "0", "has more than 18 digits: choose a smaller number"),
        ("--guidance", "nan", "is not a finite number"),
        ("--guidance", "inf", "is not a finite number"),
    ],
)
def test_a_number_that_no_image_can_be_made_with_is_one_sentence(option, value, told, tmp_path, capsys):
    with pytest.raises(SystemExit):
        sample.main(["--base", "x", "--prompt", "x", "--out", str(tmp_path), f"{option}={value}"])
    assert capsys.readouterr().err.endswith(f"argument {option}: {value} {told}\n")


@pytest.mark.parametrize("number", ["0", "51"])
def test_a_number_of_layers_that_no_model_makes_is_one_sentence(number, tmp_path, capsys):
    with pytest.raises(SystemExit):
        sample.main(["--base", "x", "--prompt", "x", "--out", str(tmp_path), "--layers", number])
    assert capsys.readouterr().err.endswith(
        f"argument --layers: {number} is outside 1 to 50: choose a number in that range\n"
    )
