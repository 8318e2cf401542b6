"""Adapters of norm layers beside a LoRA: their file is used, gone on from and merged as a whole, or refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionPipeline

from modules.config.errors import UserError
from modules.methods.lora_tools import merge_into_model, resize
from modules.methods.registry import METHODS
from modules.weights.convert import convert
from modules.weights.errors import WeightsError
from modules.weights.load_pipeline import load_pipeline
from modules.weights.LoraSource import is_of_norm
from modules.weights.norm_layers import AdaptedNorm, add_norm_adapters
from modules.weights.safe import load_tensors, save_tensors
from tests.support.prepared import prepared
from tests.support.short_training import our_picture, train

LORA, CPU = METHODS["lora"], torch.device("cpu")
SETTINGS = {"rank": 2, "alpha": 1.0, "train_norms": True, "dropout": 0.0}


@pytest.fixture
def made(tiny_sd15, tmp_path):
    """(the trained model, its settings, its only file)."""
    torch.manual_seed(0)
    base, config = prepared(tiny_sd15, "lora", lora=SETTINGS, text_encoder={"train": True})
    train(base, config, 2)
    [file] = LORA.save(base, config, tmp_path, "trained", {})
    return base, config, file


def norms(module):
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, AdaptedNorm)}


def test_every_norm_of_the_blocks_trains_and_is_in_the_file(made):
    base, config, file = made
    layers = {**norms(base.module("unet")), **norms(base.module("text_encoder"))}
    assert "down_blocks.0.resnets.0.norm1" in layers
    assert "down_blocks.0.attentions.0.transformer_blocks.0.norm2" in layers
    assert all(layer.w_norm["default"].abs().max() > 0 for name, layer in layers.items() if "layers.2" not in name)
    names = load_tensors(file)
    assert sum(name.endswith(".w_norm") for name in names) == len(layers)
    first = layers["down_blocks.0.resnets.0.norm1"].get_base_layer()
    assert names["lora_unet_down_blocks_0_resnets_0_norm1.b_norm"].shape == first.bias.shape
    assert any(name.endswith(".lora_down.weight") for name in names)
    assert sum(tensor.nbytes for tensor in names.values()) == pytest.approx(LORA.saved_bytes(base, config), rel=0.05)


def test_its_file_gives_the_trained_model_also_merged(made, tiny_sd15, tmp_path):
    base, _, file = made
    expected, before = our_picture(base.pipe), our_picture(load_pipeline(tiny_sd15, {}, CPU))
    assert np.abs(before - expected).max() > 1e-3
    assert np.abs(our_picture(load_pipeline(tiny_sd15, {file: 1.0}, CPU)) - expected).max() <= 1e-5
    merged = StableDiffusionPipeline.from_pretrained(merge_into_model(tiny_sd15, {str(file): 1.0}, tmp_path / "merged"))
    merged.set_progress_bar_config(disable=True)
    assert np.abs(our_picture(merged) - expected).max() <= 1e-5


def test_without_its_adapters_the_model_is_as_it_was(made, tiny_sd15):
    base, _, _ = made
    before = our_picture(load_pipeline(tiny_sd15, {}, CPU))
    for name in ("unet", "text_encoder"):
        base.module(name).disable_adapters()
    assert np.abs(our_picture(base.pipe) - before).max() <= 1e-5


def test_training_goes_on_from_the_file(made, tiny_sd15):
    before, _, file = made
    text = {"text_encoder": {"train": True}}
    base, config = prepared(tiny_sd15, "lora", lora={"train_norms": True, "start_from": str(file)}, **text)
    assert np.abs(our_picture(base.pipe) - our_picture(before.pipe)).max() <= 1e-5
    layer = norms(base.module("unet"))["mid_block.resnets.0.norm1"].w_norm["default"]
    old = layer.detach().clone()
    train(base, config, 1)
    assert not torch.equal(layer, old)
    with pytest.raises(UserError, match=r"switch lora\.train_norms on"):
        prepared(tiny_sd15, "lora", lora={"start_from": str(file)}, **text)


def test_training_does_not_go_on_from_norm_layers_alone(made, tiny_sd15, tmp_path):
    _, _, file = made
    of_text = {name: tensor for name, tensor in load_tensors(file).items() if name.startswith("lora_te_")}
    of_unet = {name: of for name, of in load_tensors(file).items() if "unet" in name and is_of_norm(name)}
    save_tensors(tmp_path / "norms.safetensors", of_text | of_unet)
    lora = {"train_norms": True, "start_from": str(tmp_path / "norms.safetensors")}
    message = r"norms\.safetensors' holds only norm layers for the unet, and no lora: choose another file\.$"
    with pytest.raises(UserError, match=message):
        prepared(tiny_sd15, "lora", lora=lora, text_encoder={"train": True})


def test_patterns_leave_norm_layers_out(tiny_sd15):
    base, _ = prepared(tiny_sd15, "lora", lora=SETTINGS, denoiser={"include_layers": "mid_block"})
    assert (
        norms(base.module("unet")).keys()
        == {name for name in norms(base.module("unet")) if name.startswith("mid_block.")}
        != set()
    )


def test_what_can_not_hold_norm_layers_refuses_the_file(made, tmp_path):
    _, _, file = made
    for use in (lambda target: convert(str(file), target), lambda target: resize(file, target, rank=1)):
        with pytest.raises(WeightsError, match=r"changes norm layers, such as 'lora_.*choose a LoRA without"):
            use(tmp_path / "other.safetensors")
    assert not (tmp_path / "other.safetensors").exists()


def test_a_compiled_norm_layer_gives_the_same():
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)).requires_grad_(False)
    add_norm_adapters(module, ["1"], "default")
    own = module[1].w_norm["default"]
    torch.nn.init.normal_(own)
    inputs, gradients = torch.randn(2, 8), []
    for used in (module, torch.compile(module, backend="aot_eager", fullgraph=True)):
        outputs = used(inputs)
        gradients.append(torch.autograd.grad(outputs.square().sum(), own)[0])
    torch.testing.assert_close(*gradients)
