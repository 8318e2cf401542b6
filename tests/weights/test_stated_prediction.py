"""A single file that says that it predicts v is believed, in training and in samples, and the dry run tells it."""

import pytest
import torch
from diffusers import StableDiffusionXLPipeline

from modules.config.ModelConfig import ModelConfig
from modules.families.registry import FAMILIES
from modules.weights.BaseModel import BaseModel
from modules.weights.inspect import inspect_base
from modules.weights.load_pipeline import load_pipeline
from modules.weights.safe import load_tensors, save_tensors
from modules.weights.single_file import save_single_file
from modules.weights.stated_prediction import stated_prediction

SDXL = FAMILIES["sdxl"]
UNET = "unet/diffusion_pytorch_model.safetensors"


def predicted(base, **settings):
    """What training, samples and the dry run take a base model for."""
    config = ModelConfig(base=str(base), **settings)
    model = BaseModel(SDXL, config, torch.device("cpu"))
    pipe = load_pipeline(str(base), {}, torch.device("cpu"), **settings)
    schedulers = [one.scheduler.config.prediction_type for one in (model.pipe, pipe)]
    return schedulers, stated_prediction(config, SDXL, inspect_base(str(base)))


@pytest.mark.parametrize("value", ["v", "v_prediction"])
def test_the_metadata_of_a_file_is_believed(value, tiny_sdxl, tmp_path):
    file, metadata = tmp_path / "v.safetensors", {"modelspec.prediction_type": value}
    components = StableDiffusionXLPipeline.from_pretrained(tiny_sdxl).components
    save_single_file(file, SDXL, components, metadata=metadata)
    assert predicted(file, config_folder=str(tiny_sdxl)) == (["v_prediction"] * 2, "v, by the file")


def test_that_of_a_denoiser_in_a_file_is_believed(tiny_sdxl, tmp_path):
    file = tmp_path / "unet.safetensors"
    save_tensors(file, load_tensors(tiny_sdxl / UNET), {"modelspec.prediction_type": "v"})
    told = "v, by the file of model.denoiser"
    assert predicted(tiny_sdxl, denoiser=str(file)) == (["v_prediction"] * 2, told)


def test_the_dry_run_says_who_says_it(tiny_sdxl, tiny_sdxl_v, tmp_path):
    file = tmp_path / "x.safetensors"
    save_single_file(file, SDXL, StableDiffusionXLPipeline.from_pretrained(tiny_sdxl_v).components)
    silent = tmp_path / "silent.safetensors"
    tensors = load_tensors(file)
    del tensors["v_pred"]
    save_tensors(silent, tensors, {"modelspec.prediction_type": "epsilon"})
    for base, settings, expected in (
        (tiny_sdxl, {}, "epsilon, by its scheduler"),
        (tiny_sdxl_v, {}, "v, by its scheduler"),
        (tiny_sdxl_v, {"prediction_type": "epsilon"}, "epsilon, by model.prediction_type"),
        (file, {"config_folder": str(tiny_sdxl)}, "v, by the file"),
        (silent, {"config_folder": str(tiny_sdxl)}, "epsilon, by model.config_folder"),
        (silent, {}, "what published models of its kind do; the file doesn't say, and model.prediction_type can"),
        ("somebody/model", {}, ""),
    ):
        model = ModelConfig(base=str(base), **settings)
        assert stated_prediction(model, SDXL, inspect_base(str(base))) == expected


def test_only_models_with_a_choice_say_it(tiny_sd3):
    model = ModelConfig(base=str(tiny_sd3))
    assert stated_prediction(model, FAMILIES["sd3"], inspect_base(str(tiny_sd3))) == ""
