"""scripts/lora.py: new files of LoRAs do in diffusers what the old ones do."""

import shutil

import numpy as np
import pytest
import safetensors
import torch
from diffusers import DiffusionPipeline

from modules.config.errors import UserError
from modules.families.registry import FAMILIES
from modules.methods import lora_tools
from modules.methods.lora_start import read_start
from modules.methods.registry import METHODS
from modules.weights import LoraSource
from modules.weights.convert import convert
from modules.weights.lora_files import load_lora
from modules.weights.lora_layers import is_kohya
from modules.weights.lora_math import difference_of
from modules.weights.lora_reading import read_layers
from modules.weights.safe import METADATA, load_tensors, read_header, save_tensors
from scripts import lora
from tests.support.prepared import prepared
from tests.support.short_training import plain_picture


def trained(folder, seed, target, family="sd15", std=0.05, **settings):
    """The files of a LoRA with random weights, in both formats where there are two."""
    values = {"targets": "linear_conv", "rank": 4, "alpha": 10.0, **settings}
    base, config = prepared(folder, "lora", family, lora=values, output={"format": "diffusers"})
    torch.manual_seed(seed)
    with torch.no_grad():
        for name in base.family.lora_targets:
            for parameter in base.module(name).parameters():
                if parameter.requires_grad:
                    parameter.normal_(0.0, std)
    return METHODS["lora"].save(base, config, target, f"lora{seed}", {})


@pytest.fixture(scope="module")
def loras(tiny_sd15, tmp_path_factory):
    folder = tmp_path_factory.mktemp("loras")
    return [*trained(tiny_sd15, 0, folder), *trained(tiny_sd15, 1, folder, targets="attention", rank=2)]


def picture(folder, files=()):
    pipe = DiffusionPipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    strengths = {}
    for file, strength in files:
        load_lora(pipe, file)
        names = {name for loaded in pipe.get_list_adapters().values() for name in loaded}
        strengths |= dict.fromkeys(names - strengths.keys(), strength)
    if strengths:
        pipe.set_adapters(list(strengths), list(strengths.values()))
    return plain_picture(pipe)


def run(*arguments):
    return lora.main([str(argument) for argument in arguments])


def test_a_merged_model_makes_the_picture_of_its_loras(tiny_sd15, loras, tmp_path, capsys):
    named = ("--lora", f"{loras[0]}:0.5", "--lora", f"{loras[1]}:-0.3")
    assert run("merge", tiny_sd15, tmp_path / "merged", *named) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "merged")]
    expected = picture(tiny_sd15, [(loras[0], 0.5), (loras[1], -0.3)])
    assert np.abs(picture(tmp_path / "merged") - expected).max() <= 1e-5
    assert np.abs(picture(tiny_sd15) - expected).max() > 1e-3
    assert run("merge", tiny_sd15, tmp_path / "merged.safetensors", *named, "--dtype", "float16") == 0
    assert {str(tensor.dtype) for tensor in load_tensors(tmp_path / "merged.safetensors").values()} == {"torch.float16"}


def test_each_reader_loads_a_file_once(tiny_sd15, loras, tmp_path, monkeypatch):
    base, config = prepared(tiny_sd15, "lora")
    config.lora.start_from = str(loras[0])
    pipe, loaded, read = DiffusionPipeline.from_pretrained(tiny_sd15), [], []
    for module, name, calls in ((safetensors, "safe_open", loaded), (LoraSource, "read_header", read)):
        monkeypatch.setattr(module, name, counting(getattr(module, name), calls))
    for reader in (
        lambda: read_start(base.family, config.lora, ["unet"]),
        lambda: load_lora(pipe, loras[0]),
        lambda: lora_tools.resize(loras[0], tmp_path / "small.safetensors", 1),
        lambda: convert(str(loras[0]), tmp_path / "converted.safetensors"),
    ):
        reader()
        assert [len(loaded), len(read)] == [1, 1]
        loaded.clear(), read.clear()


def counting(function, calls):
    def call(*args, **options):
        calls.append(args)
        return function(*args, **options)

    return call


def test_loras_in_the_home_folder_are_found(tiny_sd15, loras, tmp_path, monkeypatch):
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(loras[0].parent))
    named = f"--lora=~/{loras[0].name}:0.5"
    assert run("merge", tiny_sd15, tmp_path / "merged", named) == 0
    assert run("merge", tiny_sd15, tmp_path / "merged.safetensors", named) == 0
    assert run("combine", tmp_path / "combined.safetensors", named) == 0


@pytest.mark.parametrize("kind", [{"adapter": "loha"}, {"adapter": "lokr"}, {"adapter": "oft"}, {"dora": True}])
def test_other_adapters_are_merged_and_refused_where_they_would_be_changed(kind, tiny_sd15, tmp_path, capsys):
    (file,) = trained(tiny_sd15, 3, tmp_path, std=0.3, targets="attention", **kind)
    assert run("merge", tiny_sd15, tmp_path / "merged", "--lora", f"{file}:0.5") == 0
    expected = picture(tiny_sd15, [(file, 0.5)])
    assert np.abs(picture(tmp_path / "merged") - expected).max() <= 1e-5
    assert np.abs(picture(tiny_sd15) - expected).max() > 1e-4
    assert run("resize", file, tmp_path / "small.safetensors", "--rank", "1", "--family", "sd15") == 2
    error = capsys.readouterr().err
    assert "merge it instead" in error if "dora" in kind else "choose one for sd15" in error


def test_a_combined_lora_makes_the_picture_of_its_parts(tiny_sd15, loras, tmp_path):
    target = tmp_path / "both.safetensors"
    assert run("combine", target, "--lora", f"{loras[0]}:0.5", "--lora", f"{loras[1]}:-0.3") == 0
    expected = picture(tiny_sd15, [(loras[0], 0.5), (loras[1], -0.3)])
    assert np.abs(picture(tiny_sd15, [(target, 1.0)]) - expected).max() <= 1e-5
    assert run("combine", tmp_path / "small.safetensors", "--lora", target, "--rank", "1") == 0
    layers = read_layers(tmp_path / "small.safetensors", FAMILIES["sd15"])["unet"]
    assert {layer.rank for layer in layers.values()} == {1}


def test_a_resized_lora_of_kohyas_format_stays_in_it(tiny_sd15, loras, tmp_path):
    from modules.weights.convert import convert

    kohya = convert(str(loras[0]), tmp_path / "kohya.safetensors")
    assert run("resize", kohya, tmp_path / "same.safetensors") == 0
    assert is_kohya(read_header(tmp_path / "same.safetensors"))
    pictures = [picture(tiny_sd15, [(file, 1.0)]) for file in (kohya, tmp_path / "same.safetensors")]
    assert np.abs(pictures[0] - pictures[1]).max() <= 1e-5
    lower = ("--rank", "3", "--keep", "0.9", "--dtype", "float16")
    assert run("resize", kohya, tmp_path / "small.safetensors", *lower) == 0
    layers = read_layers(tmp_path / "small.safetensors", FAMILIES["sd15"])["unet"]
    assert max(layer.rank for layer in layers.values()) == 3
    assert {layer.up.dtype for layer in layers.values()} == {torch.float16}


def test_words_in_the_file_stay_in_it(tiny_sd15, loras, tmp_path, capsys):
    kohya, word = tmp_path / "kohya.safetensors", {"bundle_emb.sks.emb_params": torch.randn(2, 32)}
    convert(str(loras[0]), kohya)
    save_tensors(kohya, {**load_tensors(kohya), **word})
    small, both = tmp_path / "small.safetensors", tmp_path / "both.safetensors"
    assert run("resize", kohya, small, "--rank", "2") == 0
    assert run("combine", both, "--lora", kohya, "--lora", loras[1]) == 0
    for path in (small, both):
        assert torch.equal(load_tensors(path)["bundle_emb.sks.emb_params"], word["bundle_emb.sks.emb_params"])
    assert run("merge", tiny_sd15, tmp_path / "one.safetensors", "--lora", kohya) == 2
    assert "one.safetensors': a single file has no place for the word 'sks'; name a fol" in capsys.readouterr().err
    for others, message in (
        ((loras[1], kohya), "can't hold words, such as 'sks'"),
        ((kohya, small), "leave one of them out"),
    ):
        named = [text for path in others for text in ("--lora", path)]
        assert run("combine", tmp_path / "no.safetensors", *named) == 2
        assert message in capsys.readouterr().err


def test_what_a_lora_changed_is_extracted_from_the_merged_model(tiny_sd15, loras, tmp_path):
    assert run("merge", tiny_sd15, tmp_path / "merged", "--lora", loras[0]) == 0
    target = tmp_path / "extracted.safetensors"
    assert run("extract", tiny_sd15, tmp_path / "merged", target, "--rank", "4") == 0
    family = FAMILIES["sd15"]
    before, after = (read_layers(file, family)["unet"] for file in (loras[0], target))
    assert before.keys() == after.keys()
    for path, layer in before.items():
        torch.testing.assert_close(difference_of(after[path]), difference_of(layer), atol=2e-5, rtol=1e-4)
    assert not any("/" in text for text in read_header(target)[METADATA].values())
    assert run("extract", tiny_sd15, tmp_path / "merged", tmp_path / "k.safetensors", "--rank", "4", "--kohya") == 0
    assert is_kohya(read_header(tmp_path / "k.safetensors"))


def test_a_model_of_two_experts_gives_a_file_for_each(tiny_model, tmp_path, capsys):
    folder = tiny_model("wan22_a14b")
    files = trained(folder, 0, tmp_path, "wan22_a14b", targets="attention")
    assert len(files) == 2
    named = [option for file in files for option in ("--lora", file)]
    assert run("merge", folder, tmp_path / "merged", *named) == 0
    assert run("extract", folder, tmp_path / "merged", tmp_path / "x.safetensors", "--rank", "4") == 0
    made = [tmp_path / "x.safetensors", tmp_path / "x_transformer_2.safetensors"]
    assert capsys.readouterr().out.split()[1:] == [str(file) for file in made]
    family = FAMILIES["wan22_a14b"]
    for old, new in zip(files, made, strict=True):
        ((name, before),) = read_layers(old, family).items()
        after = read_layers(new, family)[name]
        for path, layer in before.items():
            torch.testing.assert_close(difference_of(after[path]), difference_of(layer), atol=2e-5, rtol=1e-4)
    assert run("combine", tmp_path / "no.safetensors", *named, "--family", "wan22_a14b") == 2
    assert "a file has the LoRA of one expert" in capsys.readouterr().err


def test_a_lora_that_holds_infinity_is_refused_by_file_and_tensor(tiny_sd15, loras, tmp_path, capsys):
    tensors = load_tensors(loras[0])
    name = min(tensors)
    tensors[name].view(-1)[-1] = torch.inf
    bad, target = tmp_path / "bad.safetensors", tmp_path / "new.safetensors"
    save_tensors(bad, tensors, read_header(loras[0])[METADATA])
    for arguments in (
        ("resize", bad, target, "--rank", "2"),
        ("combine", target, "--lora", loras[1], "--lora", bad),
        ("merge", tiny_sd15, tmp_path / "merged", "--lora", bad),
    ):
        assert run(*arguments) == 2
        error = capsys.readouterr().err
        assert f"'{bad}': its tensor '{name}' holds NaN or infinity" in error
        assert error.count("\n") == 1
    base, config = prepared(tiny_sd15, "lora")
    config.lora.start_from = str(bad)
    with pytest.raises(UserError, match="holds NaN or infinity"):
        read_start(base.family, config.lora, ["unet", "text_encoder"])


def test_a_model_that_holds_nan_is_not_extracted_from(tiny_sd15, tmp_path, capsys):
    tuned = tmp_path / "tuned"
    shutil.copytree(tiny_sd15, tuned)
    (file,) = (tuned / "unet").glob("*.safetensors")
    tensors = load_tensors(file)
    name = next(name for name in sorted(tensors) if name.endswith("attn1.to_q.weight"))
    tensors[name][0, 0] = torch.nan
    save_tensors(file, tensors)
    assert run("extract", tiny_sd15, tuned, tmp_path / "new.safetensors", "--rank", "2") == 2
    layer = name.removesuffix(".weight")
    assert f"'{tuned}': the weight of its 'unet.{layer}' holds NaN or infinity" in capsys.readouterr().err


def test_refusals_are_one_line(tiny_sd15, tiny_sdxl, loras, tmp_path, capsys):
    target = tmp_path / "new.safetensors"
    sdxl = trained(tiny_sdxl, 2, tmp_path, "sdxl", targets="attention")[0]
    for arguments, message in (
        (("resize", loras[0], loras[1]), "already exists; choose another name."),
        (("resize", loras[0], tmp_path / "new"), "a single file is saved as .safetensors"),
        (("resize", tmp_path / "none.safetensors", target), "none.safetensors"),
        (("combine", target, "--lora", loras[0], "--lora", sdxl), "is a LoRA for sdxl; choose one for sd15."),
        (("merge", tiny_sdxl, tmp_path / "x", "--lora", loras[0]), "is a LoRA for sd15; choose a LoRA for sdxl."),
        (("extract", tiny_sd15, tiny_sd15, target, "--rank", "4"), "has the same weights as"),
        (("extract", tiny_sd15, tiny_sdxl, target, "--rank", "4"), "as the base is."),
        (("extract", loras[0], tiny_sd15, target, "--rank", "4"), "is not a diffusers folder"),
    ):
        assert run(*arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert not target.exists()
