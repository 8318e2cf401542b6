"""Denoisers in GGUF files: read as they are meant, trained under adapters, and refused where they can't be used."""

from __future__ import annotations

import struct

import pytest
import torch
from diffusers import SD3Transformer2DModel, UNet2DConditionModel, WanTransformer3DModel
from diffusers.models.model_loading_utils import load_gguf_checkpoint

from modules.config.ModelConfig import ModelConfig
from modules.families.registry import FAMILIES
from modules.layers.QuantizedLinear import QuantizedLinear
from modules.weights.BaseModel import BaseModel
from modules.weights.errors import WeightsError
from modules.weights.load_pipeline import load_pipeline
from modules.weights.mmdit_names import mmdit_tensors
from modules.weights.own_parts import own_parts
from modules.weights.safe import load_tensors, save_tensors
from modules.weights.single_file import unet_to_single_file
from tests.support.gguf_file import write_gguf
from tests.support.makers_names import of_flux

pytest.importorskip("gguf", reason="an optional package")


@pytest.mark.parametrize("quantization", ["Q8_0", "Q5_1", "BF16"])
def test_joined_layers_under_the_names_of_the_original_are_read_as_they_are_meant(quantization, tiny_sd3, tmp_path):
    transformer = SD3Transformer2DModel.from_pretrained(tiny_sd3, subfolder="transformer")
    original = {
        f"model.diffusion_model.{name}": value for name, value in mmdit_tensors(transformer.state_dict()).items()
    }
    meant = write_gguf(tmp_path / "model.gguf", original, quantization)
    save_tensors(tmp_path / "meant.safetensors", meant)
    weights = []
    for file in ("model.gguf", "meant.safetensors"):
        config = ModelConfig(base=str(tiny_sd3), denoiser=str(tmp_path / file))
        base = BaseModel(FAMILIES["sd3"], config, torch.device("cpu"))
        base.require("transformer")
        quantized = [layer for layer in base.module("transformer").modules() if isinstance(layer, QuantizedLinear)]
        assert bool(quantized) == (file == "model.gguf" and quantization != "BF16")
        weights.append(plain_weights(base.module("transformer")))
        assert base.stored_quantized == (["transformer"] if file == "model.gguf" else [])
    read, expected = weights
    assert read.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in read.items())


@pytest.mark.parametrize("layout", ["original", "diffusers"])
def test_the_convolutions_of_unets_get_their_shapes_back(layout, tiny_sd15, tmp_path):
    unet = UNet2DConditionModel.from_pretrained(tiny_sd15, subfolder="unet")
    tensors = unet.state_dict()
    if layout == "original":
        prefixed = unet_to_single_file(tensors, unet.config)
        tensors = {name.removeprefix("model.diffusion_model."): value for name, value in prefixed.items()}
    meant = write_gguf(tmp_path / "model.gguf", tensors, "Q8_0", in_rows=True)
    stored = load_gguf_checkpoint(str(tmp_path / "model.gguf"))
    assert any(value.dim() == 4 and stored[name].dim() == 2 for name, value in tensors.items())
    save_tensors(tmp_path / "meant.safetensors", meant)
    weights = []
    for file in ("model.gguf", "meant.safetensors"):
        config = ModelConfig(base=str(tiny_sd15), denoiser=str(tmp_path / file))
        base = BaseModel(FAMILIES["sd15"], config, torch.device("cpu"))
        base.require("unet")
        weights.append(plain_weights(base.module("unet")))
    read, expected = weights
    assert read.keys() == expected.keys()
    assert [name for name, value in read.items() if not torch.equal(value, expected[name])] == []


def plain_weights(module):
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, QuantizedLinear)}
    state = {name: value for name, value in module.state_dict().items() if name.rpartition(".")[0] not in layers}
    for name, layer in layers.items():
        state[f"{name}.weight"] = layer.dequantize()
        if layer.bias is not None:
            state[f"{name}.bias"] = layer.bias
    return state


def test_images_are_made_with_it(tiny_sd3, tmp_path):
    own = SD3Transformer2DModel.from_pretrained(tiny_sd3, subfolder="transformer").state_dict()
    write_gguf(tmp_path / "model.gguf", own, "Q8_0")
    device = torch.device("cpu")
    pipe = load_pipeline(str(tiny_sd3), {}, device, dtype="bfloat16", denoiser=str(tmp_path / "model.gguf"))
    assert any(isinstance(layer, QuantizedLinear) for layer in pipe.transformer.modules())
    image = pipe("a cat", height=32, width=32, num_inference_steps=1, output_type="pt").images
    assert image.isfinite().all()


@pytest.mark.parametrize(("option", "expert"), [("denoiser", "transformer"), ("denoiser_2", "transformer_2")])
def test_of_two_experts_one_alone_makes_videos_too(option, expert, tiny_model, tmp_path):
    folder = tiny_model("wan22_a14b")
    own = WanTransformer3DModel.from_pretrained(folder, subfolder=expert).state_dict()
    assert own["patch_embedding.weight"].dim() == 5  # as files of video models have it
    write_gguf(tmp_path / "model.gguf", own, "Q8_0")
    options = {option: str(tmp_path / "model.gguf")}
    pipe = load_pipeline(str(folder), {}, torch.device("cpu"), dtype="bfloat16", **options)
    experts = ("transformer", "transformer_2")
    quantized = {name for name in experts for of in getattr(pipe, name).modules() if isinstance(of, QuantizedLinear)}
    assert quantized == {expert}
    video = pipe("a cat", height=32, width=32, num_frames=5, num_inference_steps=3, output_type="pt").frames
    assert video.isfinite().all()


def refusal(path) -> str:
    with pytest.raises(WeightsError) as caught:
        own_parts(FAMILIES["flux1"], ModelConfig(denoiser=str(path)))
    return str(caught.value)


def header(num_tensors=1, num_values=0, name=b"a", shape=(32,), kind=0, offset=0, data=128, version=3) -> bytes:
    parts = struct.pack("<4sIQQ", b"GGUF", version, num_tensors, num_values)
    parts += struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
    return parts + bytes(-len(parts) % 32 + data)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"GGUF", "cut off"),
        (header(version=1), "another format or version"),
        (header(num_tensors=2**60), "claims"),
        (header(shape=(2**40,)), "has the shape"),
        (header(shape=(1,) * 60), "dimensions"),
        (header(kind=99), "the format 99"),
        (header(kind=8, shape=(33,)), "has the shape"),
        (header(data=127), "leads out of the file"),
        (header(offset=2**63), "leads out of the file"),
        (header(offset=8), "leads out of the file"),
        (header()[:16] + struct.pack("<Q", 1) + struct.pack("<Q", 2**62), "longer than the file"),
        (header()[:16] + struct.pack("<QQ", 1, 1) + b"a" + struct.pack("<I", 77), "unknown kind"),
    ],
)
def test_a_damaged_header_is_refused_before_anything_is_read(content, reason, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert reason in refusal(path)


def test_a_whole_header_passes(tmp_path):
    (tmp_path / "model.gguf").write_bytes(header())
    assert own_parts(FAMILIES["flux1"], ModelConfig(denoiser=str(tmp_path / "model.gguf")))


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    (tmp_path / "model.gguf").write_bytes(header())
    monkeypatch.setattr("modules.weights.gguf_files.find_spec", lambda name: None)
    assert "pip install gguf" in refusal(tmp_path / "model.gguf")


def test_the_joined_layers_of_flux_are_divided_as_they_are_meant(tiny_model, tmp_path):
    folder = tiny_model("flux1")
    tensors = of_flux(load_tensors(folder / "transformer" / "diffusion_pytorch_model.safetensors"))
    save_tensors(tmp_path / "meant.safetensors", write_gguf(tmp_path / "model.gguf", tensors, "Q8_0"))
    weights = []
    for file in ("model.gguf", "meant.safetensors"):
        config = ModelConfig(base=str(folder), denoiser=str(tmp_path / file))
        base = BaseModel(FAMILIES["flux1"], config, torch.device("cpu"))
        base.require("transformer")
        weights.append(plain_weights(base.module("transformer")))
    read, expected = weights
    assert read.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in read.items())
