"""Single files without some part: what else names one takes its place, and what is missing is told before the start."""

import shutil

import pytest
import torch
from diffusers import StableDiffusion3Pipeline, StableDiffusionXLPipeline

from modules.config.files import config_from_values
from modules.config.ModelConfig import ModelConfig
from modules.families.registry import FAMILIES
from modules.trainer.checks import check_start
from modules.weights.BaseModel import BaseModel
from modules.weights.errors import WeightsError
from modules.weights.load_pipeline import load_pipeline
from modules.weights.safe import load_tensors, save_tensors
from modules.weights.single_file import save_single_file

VAE = "first_stage_model."
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def checkpoint(tiny_sdxl, tmp_path_factory):
    file = tmp_path_factory.mktemp("checkpoint") / "whole.safetensors"
    save_single_file(file, FAMILIES["sdxl"], StableDiffusionXLPipeline.from_pretrained(tiny_sdxl).components)
    return file


def without(file, start, folder):
    save_tensors(folder / "less.safetensors", {n: t for n, t in load_tensors(file).items() if not n.startswith(start)})
    return str(folder / "less.safetensors")


def check(base, pictures, **settings):
    values = {"family": "sdxl", "model": {"base": base, **settings}, "concepts": [{"path": str(pictures)}]}
    return check_start(config_from_values(values), 1)


@pytest.mark.parametrize("kind", ["folder", "file"])
@pytest.mark.parametrize("load", ["to train", "for samples"])
def test_model_vae_takes_the_place_of_a_vae_that_is_missing(kind, load, checkpoint, tiny_sdxl, tmp_path):
    vae = tiny_sdxl / "vae" if kind == "folder" else tiny_sdxl / "vae" / WEIGHTS
    settings = {"config_folder": str(tiny_sdxl), "vae": str(vae)}
    base = without(checkpoint, VAE, tmp_path)
    if load == "to train":
        pipe = BaseModel(FAMILIES["sdxl"], ModelConfig(base=base, **settings), torch.device("cpu")).pipe
    else:
        pipe = load_pipeline(base, {}, torch.device("cpu"), dtype="float32", **settings)
    expected = load_tensors(tiny_sdxl / "vae" / WEIGHTS)
    assert all(torch.equal(value, expected[name]) for name, value in pipe.vae.state_dict().items())


@pytest.mark.parametrize(
    ("start", "part"),
    [(VAE, "VAE"), ("conditioner.embedders.0.", "text_encoder"), ("conditioner.embedders.1.", "text_encoder_2")],
)
def test_the_dry_run_names_what_is_missing(start, part, checkpoint, tiny_sdxl, picture_folder, tmp_path):
    base, pictures = without(checkpoint, start, tmp_path), picture_folder()
    with pytest.raises(WeightsError) as caught:
        check(base, pictures, config_folder=str(tiny_sdxl))
    rest = {
        "VAE": "; set model.vae to that of a Stable Diffusion XL model, or choose a checkpoint that contains the "
        "complete model."
    }.get(
        part,
        ", which Stable Diffusion XL needs; add its file to model.text_encoders, or choose a checkpoint that contains "
        "the complete model.",
    )
    assert str(caught.value) == f"model.base {base!r}: has no {part}{rest}"
    if part == "VAE":
        check(base, pictures, config_folder=str(tiny_sdxl), vae=str(tiny_sdxl))


@pytest.mark.parametrize("load", ["to train", "for samples"])
def test_model_text_encoders_takes_the_place_of_those_that_are_missing(load, tiny_model, tmp_path, picture_folder):
    """As the files of Stable Diffusion 3.5 come, without any."""
    folder, base = tiny_model("sd3"), str(tmp_path / "sd3.5_large.safetensors")
    save_single_file(
        tmp_path / "whole.safetensors", FAMILIES["sd3"], StableDiffusion3Pipeline.from_pretrained(folder).components
    )
    whole = load_tensors(tmp_path / "whole.safetensors")
    save_tensors(base, {name: tensor for name, tensor in whole.items() if not name.startswith("text_encoders.")})
    encoders = ("text_encoder", "text_encoder_2", "text_encoder_3")
    files = [str(folder / name / "model.safetensors") for name in encoders]
    pictures = [{"path": str(picture_folder())}]
    for needed in (files, files[:2]):
        settings = {"config_folder": str(folder), "text_encoders": needed}
        if load == "to train":
            values = {"family": "sd3", "model": {"base": base, **settings}, "concepts": pictures}
            check_start(config_from_values(values), 1)
            pipe = BaseModel(FAMILIES["sd3"], ModelConfig(base=base, **settings), torch.device("cpu")).pipe
        else:
            pipe = load_pipeline(base, {}, torch.device("cpu"), dtype="float32", **settings)
        for name, file in zip(encoders, needed, strict=False):
            expected, own = load_tensors(file), getattr(pipe, name).state_dict()
            got = {key: own[key] if key in own else own[key.removeprefix("text_model.")] for key in expected}
            assert all(torch.equal(value, expected[key]) for key, value in got.items())
        assert (pipe.text_encoder_3 is None, pipe.tokenizer_3 is None) == (len(needed) == 2,) * 2


def test_a_vae_without_config_asks_for_the_folder_that_has_it(checkpoint, tiny_sdxl, tmp_path):
    vae = shutil.copy(tiny_sdxl / "vae" / WEIGHTS, tmp_path)
    model = ModelConfig(base=without(checkpoint, VAE, tmp_path), vae=str(vae))
    with pytest.raises(WeightsError, match=r"set model\.config_folder to a diffusers folder of the same kind"):
        BaseModel(FAMILIES["sdxl"], model, torch.device("cpu"))
