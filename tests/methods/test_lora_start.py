"""A LoRA that goes on from a file: the same function at once, in the file's own shape; misfits are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from modules.config.errors import UserError
from modules.methods.lora_start import read_start
from modules.methods.registry import METHODS
from modules.weights.BaseModel import BaseModel
from modules.weights.lora_files import adapter_layers
from modules.weights.safe import load_tensors, save_tensors
from tests.support.prepared import prepared
from tests.support.short_training import our_picture, train

LORA = METHODS["lora"]
FILES = {"diffusers": 0, "kohya": 1}
MODELS = {"tiny_sd15": "sd15", "tiny_sdxl": "sdxl", "tiny_sd3": "sd3"}
TEXT = {"text_encoder": {"train": True}}


def made(folder, family, path, text=True, **lora):
    """A trained LoRA and its files: diffusers' and kohya's."""
    lora = {"rank": 3, "alpha": 2.0, **lora}
    base, config = prepared(folder, "lora", family, text_encoder={"train": text}, lora=lora, output={"format": "both"})
    train(base, config, 1)
    return base, LORA.save(base, config, path, "first", {"family": family})


KINDS_OF_LORA = ({}, {"dora": True}, {"rslora": True, "targets": "attention_mlp"})


@pytest.mark.parametrize(
    ("model", "kind", "lora"),
    [
        *(("tiny_sd15", kind, lora) for kind in FILES for lora in KINDS_OF_LORA),
        # what depends on the family are the names, and of those kohya's differ from the model's own
        ("tiny_sdxl", "kohya", {}),
        ("tiny_sd3", "kohya", {}),
    ],
    ids=str,
)
def test_training_goes_on_from_what_the_file_holds(model, kind, lora, tmp_path, request):
    folder = request.getfixturevalue(model)
    before, files = made(folder, MODELS[model], tmp_path, **lora)
    file = str(files[FILES[kind]])
    settings = {"rank": 16, "alpha": 16.0, "start_from": file, "dropout": 0.25}
    base, config = prepared(folder, "lora", MODELS[model], **TEXT, lora=settings)
    for part in LORA.components(base.family, config):
        own, other = adapter_layers(base.module(part)), adapter_layers(before.module(part))
        assert own.keys() == other.keys()
        for name, layer in own.items():
            assert layer.rank == 3
            for value, expected in ((layer.down, other[name].down), (layer.magnitude, other[name].magnitude)):
                assert value is None if expected is None else torch.equal(value, expected)
            product, expected = layer.up * layer.alpha, other[name].up * other[name].alpha
            torch.testing.assert_close(product, expected, rtol=1e-6, atol=0)
    assert np.abs(our_picture(base.pipe) - our_picture(before.pipe)).max() <= 1e-5
    trains = [name for name, param in LORA.loss(base, config).named_parameters() if param.requires_grad]
    assert trains
    assert all("lora_" in name for name in trains)
    denoiser = base.module(base.family.denoisers[0])
    assert {layer.lora_dropout["default"].p for layer in denoiser.modules() if hasattr(layer, "lora_dropout")} == {0.25}
    losses = train(base, config, 2)
    assert losses[0].isfinite()
    assert np.abs(our_picture(base.pipe) - our_picture(before.pipe)).max() > 1e-4


def test_of_experts_the_files_beside_it_are_read_too(tiny_model, tmp_path):
    before, config = prepared(tiny_model("wan22_a14b"), "lora", "wan22_a14b", lora={"rank": 3})
    with torch.no_grad():
        for name in before.family.denoisers:
            for parameter in before.module(name).parameters():
                if parameter.requires_grad:
                    parameter.normal_()
    first, *_ = LORA.save(before, config, tmp_path, "first", {})
    base, config = prepared(tiny_model("wan22_a14b"), "lora", "wan22_a14b", lora={"start_from": str(first)})
    for name in base.family.denoisers:
        own, other = adapter_layers(base.module(name)), adapter_layers(before.module(name))
        assert own.keys() == other.keys()
        assert all(torch.equal(layer.up, other[path].up) for path, layer in own.items())
        assert all(layer.alpha == other[path].alpha != layer.rank for path, layer in own.items())


def test_a_part_that_the_file_lacks_gets_a_new_adapter(tiny_sd15, tmp_path):
    _, files = made(tiny_sd15, "sd15", tmp_path, text=False)
    base, _ = prepared(tiny_sd15, "lora", **TEXT, lora={"rank": 5, "start_from": str(files[0])})
    ranks = {
        part: {layer.rank for layer in adapter_layers(base.module(part)).values()} for part in ("unet", "text_encoder")
    }
    assert ranks == {"unet": {3}, "text_encoder": {5}}


def test_adapters_keep_the_files_precision_beside_a_model_of_less(tiny_sd15, tmp_path):
    before, files = made(tiny_sd15, "sd15", tmp_path, text=False)
    base, _ = prepared(tiny_sd15, "lora", model={"weight_dtype": "bfloat16"}, lora={"start_from": str(files[0])})
    for name, layer in adapter_layers(base.module("unet")).items():
        assert layer.down.dtype == torch.float32
        assert torch.equal(layer.down, adapter_layers(before.module("unet"))[name].down)


def test_a_part_of_the_file_that_does_not_train_is_left_out_and_named(tiny_sd15, tmp_path):
    before, files = made(tiny_sd15, "sd15", tmp_path)
    base, config = prepared(tiny_sd15, "lora", lora={"start_from": str(files[0])})
    assert adapter_layers(base.module("unet")).keys() == adapter_layers(before.module("unet")).keys()
    assert not hasattr(base.module("text_encoder"), "peft_config")
    told: list[str] = []
    read_start(base.family, config.lora, ["unet"], told.append)
    (text,) = told
    assert "what it has for parts that are not trained (text_encoder) is left out" in text
    assert "turn on text_encoder.train to continue it, too" in text
    with pytest.raises(UserError, match=r"is only for parts that are not trained \(text_encoder, unet\); turn on deno"):
        read_start(base.family, config.lora, ["text_encoder_2"])


@pytest.mark.parametrize("adapter", ["lora", "lokr"])
def test_layers_that_the_model_lacks_are_left_out_and_named_before_anything_is_cached(adapter, tiny_model, tmp_path):
    """A LoRA of Wan 2.1 I2V, whose cross-attention has further layers, for Wan 2.1."""
    settings = {"rank": 2, "adapter": adapter}
    i2v, config = prepared(tiny_model("wan21_i2v"), "lora", "wan21_i2v", lora=settings)
    file, *_ = LORA.save(i2v, config, tmp_path, "i2v", {})
    settings["start_from"] = str(file)
    base, config = prepared(tiny_model("wan21"), "lora", "wan21", lora=settings)
    adapted = {
        path for path, layer in base.module("transformer").named_modules() if hasattr(layer, "adapter_layer_names")
    }
    assert {path.rpartition(".")[2] for path in adapted} == {"to_q", "to_k", "to_v", "0"}
    fresh = BaseModel(base.family, config.model, torch.device("cpu"))  # of which nothing is loaded
    (text,) = LORA.check_base(fresh, config)
    assert text.startswith(f"lora.start_from '{file}': its 'transformer.blocks.0.attn2.add_k_proj' and ")
    assert text.endswith("more can't be applied, because this model has no such layer.")


def test_a_file_of_another_family_is_refused_with_the_family_it_fits(tiny_sd15, tiny_sd3, tmp_path):
    _, files = made(tiny_sd3, "sd3", tmp_path, text=False)
    message = r"^lora\.start_from '.*first\.safetensors': is a LoRA for .*sd3.*; choose a LoRA for sd15\.$"
    with pytest.raises(UserError, match=message):
        prepared(tiny_sd15, "lora", lora={"start_from": str(files[0])})


def test_a_file_that_fits_no_layer_of_the_base_is_refused(tiny_sd15, tmp_path):
    _, files = made(tiny_sd15, "sd15", tmp_path, text=False)
    tensors = load_tensors(files[1])
    wide = {
        n: torch.zeros(t.shape[0], 99) if n.endswith("attn1_to_q.lora_down.weight") else t for n, t in tensors.items()
    }
    save_tensors(tmp_path / "wide.safetensors", wide)
    with pytest.raises(
        UserError, match=r"^lora\.start_from '.*wide\.safetensors': was made for a different model; its"
    ):
        prepared(tiny_sd15, "lora", lora={"start_from": str(tmp_path / "wide.safetensors")})


@pytest.mark.parametrize("name", ["missing.safetensors", "no_lora.safetensors"])
def test_what_is_no_lora_is_refused_in_a_sentence(name, tiny_sd15, tmp_path):
    save_tensors(tmp_path / "no_lora.safetensors", {"conv_in.weight": torch.ones(1)})
    base, config = prepared(tiny_sd15, "lora")
    config.lora.start_from = str(tmp_path / name)
    with pytest.raises(UserError, match=rf"^lora\.start_from '.*{name}': .*\.$"):
        read_start(base.family, config.lora, ["unet"])
