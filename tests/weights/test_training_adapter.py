"""A training adapter changes what a denoiser predicts as a LoRA in diffusers does, in no weight, and can be off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import FluxPipeline, StableDiffusionPipeline, ZImagePipeline

from modules.config.ModelConfig import ModelConfig
from modules.families.conditioning import encode_text
from modules.families.latents import latent_shape
from modules.families.prediction import predict
from modules.families.registry import FAMILIES
from modules.methods.registry import METHODS
from modules.weights.BaseModel import BaseModel
from modules.weights.errors import WeightsError
from modules.weights.safe import load_tensors, save_tensors
from modules.weights.training_adapter import TrainingAdapter, read_training_adapter
from tests.support.prepared import prepared

CPU = torch.device("cpu")
PIPELINES = {"sd15": StableDiffusionPipeline, "flux1": FluxPipeline, "zimage": ZImagePipeline}


def made(family: str, folder: Path, path: Path, fmt: str = "diffusers", **settings) -> Path:
    """The file of a LoRA with an alpha unlike its rank, whose weights are not zero."""
    lora = {"rank": 2, "alpha": 3.0, "targets": "linear", **settings.pop("lora", {})}
    base, config = prepared(folder, "lora", family, lora=lora, output={"format": fmt}, **settings)
    torch.manual_seed(3)
    for name in FAMILIES[family].lora_targets:
        for parameter in base.module(name).parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.1)
    return METHODS["lora"].save(base, config, path, "adapter", {})[0]


def open_base(family: str, folder: Path, **settings) -> BaseModel:
    base = BaseModel(FAMILIES[family], ModelConfig(base=str(folder), channels_last=False, **settings), CPU)
    base.require(*base.component_names)
    return base


@torch.no_grad()
def prediction(family: str, pipe) -> torch.Tensor:
    latents = torch.randn(2, *latent_shape(FAMILIES[family], pipe.vae, 48, 32), generator=torch.manual_seed(1))
    text = encode_text(FAMILIES[family], pipe, ["a photo of a cat", "the dog"])
    return predict(FAMILIES[family], pipe, latents, torch.tensor([300, 900]), text)


@pytest.mark.parametrize(
    ("family", "fmt", "lora"),
    [("sd15", "diffusers", {"targets": "linear_conv"}), ("sd15", "single_file", {}), ("flux1", "diffusers", {})],
)
def test_a_denoiser_with_a_training_adapter_predicts_as_diffusers_with_the_lora(
    family, fmt, lora, tiny_model, tmp_path
):
    file, base = made(family, tiny_model(family), tmp_path, fmt, lora=lora), open_base(family, tiny_model(family))
    plain, state = prediction(family, base.pipe), base.module(FAMILIES[family].denoisers[0]).state_dict()
    adapter = TrainingAdapter(base, read_training_adapter(str(file), FAMILIES[family]))
    pipe = PIPELINES[family].from_pretrained(tiny_model(family))
    pipe.load_lora_weights(file.parent, weight_name=file.name)
    adapted = prediction(family, base.pipe)
    assert (adapted - prediction(family, pipe)).abs().max() <= 1e-5
    assert (adapted - plain).abs().max() > 1e-2
    with adapter.left_out():
        assert torch.equal(prediction(family, base.pipe), plain)
    assert torch.equal(prediction(family, base.pipe), adapted)
    after = base.module(FAMILIES[family].denoisers[0]).state_dict()
    assert after.keys() == state.keys()
    assert all(torch.equal(after[name], value) for name, value in state.items())


def test_a_file_with_names_that_diffusers_converts_is_read_with_its_alphas(tiny_model, tmp_path):
    file = made("zimage", tiny_model("zimage"), tmp_path)
    as_comfy = tmp_path / "comfy.safetensors"
    tensors = {name.replace("transformer.", "diffusion_model.", 1): value for name, value in load_tensors(file).items()}
    alphas = {name.replace(".lora_A.weight", ".alpha"): torch.tensor(3.0) for name in tensors if ".lora_A." in name}
    save_tensors(as_comfy, {**tensors, **alphas})
    predictions = []
    for path in (file, as_comfy):
        base = open_base("zimage", tiny_model("zimage"))
        TrainingAdapter(base, read_training_adapter(str(path), FAMILIES["zimage"]))
        predictions.append(prediction("zimage", base.pipe))
    assert (predictions[0] - predictions[1]).abs().max() <= 1e-5


def test_it_is_added_beside_quantized_layers_and_beneath_the_lora_that_trains(tiny_sd15, tmp_path):
    layers = read_training_adapter(str(made("sd15", tiny_sd15, tmp_path)), FAMILIES["sd15"])
    model = {"denoiser_quantization": "int8"}
    base, _ = prepared(tiny_sd15, "lora", model=model)
    plain = prediction("sd15", base.pipe)
    adapter = TrainingAdapter(base, layers)
    assert (prediction("sd15", base.pipe) - plain).abs().max() > 1e-2
    with adapter.left_out():
        assert torch.equal(prediction("sd15", base.pipe), plain)
    base.module("unet").disable_adapters()  # as for a prediction of the base before the training
    assert (prediction("sd15", base.pipe) - plain).abs().max() > 1e-2


def test_gradients_pass_through_it_to_what_lies_below(tiny_sd15, tmp_path):
    layers = read_training_adapter(str(made("sd15", tiny_sd15, tmp_path)), FAMILIES["sd15"])
    down, up = next((layer.down, layer.up * 1.5) for layer in layers["unet"].values())
    base = open_base("sd15", tiny_sd15)
    TrainingAdapter(base, layers)
    linear = base.module("unet").get_submodule(next(iter(layers["unet"])))
    values = torch.randn(3, linear.in_features, requires_grad=True)
    linear(values).sum().backward()
    assert torch.allclose(values.grad[0], (linear.weight + up @ down).sum(0), atol=1e-5)
    assert linear.weight.grad is None


def test_files_that_can_not_be_one_are_refused_with_the_setting(tiny_model, tiny_sd15, tmp_path):
    def refused(reason: str, path: Path, family: str = "sd15"):
        with pytest.raises(WeightsError, match=rf"^model\.training_adapter .*{reason}"):
            read_training_adapter(str(path), FAMILIES[family])

    refused("No such file", tmp_path / "absent.safetensors")
    refused("no plain LoRA", made("sd15", tiny_sd15, tmp_path / "b", lora={"adapter": "lokr"}))
    refused("has a DoRA", made("sd15", tiny_sd15, tmp_path / "c", lora={"dora": True}))
    refused("is not a LoRA", Path(tiny_sd15) / "unet" / "diffusion_pytorch_model.safetensors")
    text = made("sd15", tiny_sd15, tmp_path / "d", denoiser={"train": False}, text_encoder={"train": True})
    refused("has a LoRA for the text_encoder alone", text)
    file = made("sd15", tiny_sd15, tmp_path / "e")
    path, layer = next(iter(read_training_adapter(str(file), FAMILIES["sd15"])["unet"].items()))
    wide = {"unet": {path: replace(layer, up=torch.cat([layer.up] * 2))}}
    with pytest.raises(
        WeightsError, match=rf"^model\.training_adapter '{file}': was made for .* its layer 'unet\.{path}'"
    ):
        TrainingAdapter(open_base("sd15", tiny_sd15, training_adapter=str(file)), wide)


def test_what_it_has_for_other_parts_and_layers_that_the_denoiser_lacks_is_left_out_and_named(tiny_sd15, tmp_path):
    file, told = str(made("sd15", tiny_sd15, tmp_path, text_encoder={"train": True})), []
    layers = read_training_adapter(file, FAMILIES["sd15"], told.append)
    assert set(layers) == {"unet"}
    assert "what it has for the text_encoder is left out" in told.pop()
    base = open_base("sd15", tiny_sd15, training_adapter=file)
    layers["unet"]["mid_block.attentions.0.nothing"] = next(iter(layers["unet"].values()))
    plain = prediction("sd15", base.pipe)
    TrainingAdapter(base, layers, told.append)
    assert told == [
        f"model.training_adapter '{file}': its 'unet.mid_block.attentions.0.nothing' can't be applied, because this "
        "model has no such layer."
    ]
    assert (prediction("sd15", base.pipe) - plain).abs().max() > 1e-2
