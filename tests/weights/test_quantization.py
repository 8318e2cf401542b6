"""Quantized components: which layers are quantized, when, and what they then take."""

from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch import nn

from modules.config.errors import UserError
from modules.config.ModelConfig import ModelConfig
from modules.config.quantizations import QUANTIZATIONS
from modules.families.conditioning import encode_text
from modules.families.conditions import References
from modules.families.registry import FAMILIES
from modules.layers.QuantizedLinear import QuantizedLinear
from modules.weights.BaseModel import BaseModel
from modules.weights.quantization import multiply_in_8_bits, quantizable_layers, quantize_layers
from scripts.published_models import build
from tests.support import alike_families
from tests.support.alike_families import once_for_each

CPU = torch.device("cpu")
# Of the memory that all linear layers of a denoiser take in bfloat16.
SHARES = {"int8": 0.55, "float8": 0.55, "nf4": 0.32}


def open_base(family, folder, quantization, dtype="bfloat16"):
    quantizations = {"denoiser_quantization": quantization, "text_encoder_quantization": quantization}
    return BaseModel(FAMILIES[family], ModelConfig(base=str(folder), weight_dtype=dtype, **quantizations), CPU)


def quantized(module: nn.Module) -> list[str]:
    return [name for name, layer in module.named_modules() if isinstance(layer, QuantizedLinear)]


def num_bytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_the_linear_layers_of_flux_take_half_or_a_third(quantization):
    if package := QUANTIZATIONS[quantization].package:
        pytest.importorskip(package, reason="an optional package")
    published = FAMILIES["flux1"].published.denoiser
    # a fifth of the blocks, which weigh less against the layers outside
    config = {**published.config, "num_layers": 4, "num_single_layers": 8}
    denoiser = build(replace(published, config=config), torch.bfloat16)
    layers = [name for name, layer in denoiser.named_modules() if isinstance(layer, nn.Linear)]
    plain = sum(num_bytes(denoiser.get_submodule(name)) for name in layers)
    config = ModelConfig(denoiser_quantization=quantization)
    names = quantizable_layers(FAMILIES["flux1"], "transformer", denoiser)
    quantize_layers(FAMILIES["flux1"], "transformer", denoiser, config, names, torch.device("meta"))
    assert sum(num_bytes(denoiser.get_submodule(name)) for name in layers) <= SHARES[quantization] * plain


@once_for_each(alike_families.quantized, "family")
def test_the_denoisers_of_every_family_are_quantized(family, tiny_model):
    # one without adapters never is: the methods that train it train its own weights
    names = [name for name in FAMILIES[family].denoisers if name in FAMILIES[family].lora_targets]
    for quantization in ("none", "int8"):
        base = open_base(family, tiny_model(family), quantization)
        base.require(*names)
        assert_quantized(base, names, quantization)


@once_for_each(alike_families.encoders, "family")
def test_every_text_encoder_works_when_it_is_quantized(family, tiny_model):
    family = FAMILIES[family]
    encodings = []
    for quantization in ("none", "int8"):
        base = open_base(family.name, tiny_model(family.name), quantization)
        base.require(*family.text.encoders, *family.text_components)
        assert_quantized(base, family.text.encoders, quantization)
        with torch.no_grad():
            sees_image = family.fact(References, "needed") or family.text.sees_first_frame
            images = [[Image.new("RGB", (56, 56))]] if sees_image else None
            value = next(iter(encode_text(family, base.pipe, ["a photo of a cat"], images).values()))
        encodings.append(torch.cat(value) if isinstance(value, list) else value)
    plain, lossy = (encoding.float() for encoding in encodings)
    assert 0 < (lossy - plain).norm() < 0.1 * plain.norm()


def assert_quantized(base, names, quantization):
    for name in names:
        module = base.module(name)
        assert module.dtype == torch.bfloat16  # inputs are cast to it
        assert bool(quantized(module)) == (quantization == "int8")
        assert bool(quantizable_layers(base.family, name, module)) == (quantization == "none")


def test_layers_outside_of_the_blocks_and_those_that_the_family_names_stay_as_they_are(tiny_sd15):
    base = open_base("sd15", tiny_sd15, "int8")
    base.require("unet")
    unet = base.module("unet")
    plain = {name for name, layer in unet.named_modules() if type(layer) is nn.Linear}
    outside = {"time_embedding.linear_1", "time_embedding.linear_2"}
    assert outside < plain
    assert {name.rpartition(".")[2] for name in plain - outside} == {"time_emb_proj"}


def test_layers_that_a_library_keeps_in_float32_and_tied_weights_stay_as_they_are(tiny_model):
    for dtype, are_quantized in (("bfloat16", True), ("float16", False)):
        base = open_base("flux1", tiny_model("flux1"), "int8", dtype)
        base.require("text_encoder_2")
        names = quantized(base.module("text_encoder_2"))
        assert any(name.endswith(".wo") for name in names) == are_quantized  # T5's overflow in float16
        assert any(name.endswith(".wi") for name in names)
    tied = nn.ModuleDict({"embedding": nn.Embedding(4, 8), "head": nn.Linear(8, 4, bias=False), "own": nn.Linear(8, 4)})
    tied["head"].weight = tied["embedding"].weight
    tied.dtype = torch.float32
    assert quantizable_layers(FAMILIES["flux1"], "text_encoder_2", tied) == ["own"]


def test_large_layers_of_a_denoiser_multiply_in_8_bits_if_their_sides_are_of_the_kernels(monkeypatch):
    sides = {"large": (64, 48), "small": (32, 48), "odd": (72, 72), "four bits": (64, 64)}
    layers = {
        name: QuantizedLinear.of(nn.Linear(*shape), "float8" if name != "four bits" else "int8", CPU)
        for name, shape in sides.items()
    }
    layers["four bits"].quantization = "nf4"
    module, on = nn.ModuleDict(layers), ModelConfig(quantized_matmul="on", quantized_matmul_size=2)
    monkeypatch.setattr("modules.weights.quantization.MILLION", 1000)
    for setting in ("auto", "off"):
        multiply_in_8_bits(module, ModelConfig(quantized_matmul=setting), CPU)
        assert not any(layer.in_8_bits for layer in layers.values())
    on.denoiser_quantization = "float8"
    multiply_in_8_bits(module, on, CPU)
    assert [name for name, layer in layers.items() if layer.in_8_bits] == ["large"]


@pytest.mark.parametrize(("rotation", "matmul"), [(True, "on"), (True, "off"), (False, "on")])
def test_the_layers_that_multiply_in_8_bits_are_rotated_if_the_settings_say_so(rotation, matmul, tiny_sd15):
    options = {"quantized_matmul": matmul, "quantized_matmul_size": 0, "quantized_matmul_rotation": rotation}
    model = ModelConfig(base=str(tiny_sd15), denoiser_quantization="int8", text_encoder_quantization="int8", **options)
    base = BaseModel(FAMILIES["sd15"], model, CPU)
    base.require("unet", "text_encoder")
    layers = [one for one in base.module("unet").modules() if isinstance(one, QuantizedLinear)]
    assert {one.rotation > 0 for one in layers if one.in_8_bits} == ({rotation} if matmul == "on" else set())
    assert not any(one.rotation for one in layers if not one.in_8_bits)
    encoder = base.module("text_encoder").modules()
    assert {one.rotation for one in encoder if isinstance(one, QuantizedLinear)} == {0}


def test_a_device_without_products_in_8_bits_is_refused_when_the_model_is_placed(tiny_sd15, monkeypatch):
    monkeypatch.setattr("modules.layers.quantized_matmul.matmul_problem", lambda device, name: f"fails on {device}")
    model = ModelConfig(base=str(tiny_sd15), denoiser_quantization="int8", quantized_matmul="on")
    expected = "model.quantized_matmul 'on' with denoiser_quantization int8: it fails on cpu; set model.quantized_matm"
    with pytest.raises(UserError, match=expected):
        BaseModel(FAMILIES["sd15"], model, CPU).require("unet")


def test_a_component_is_quantized_whenever_it_is_moved_to_the_device_and_not_before(tiny_sd15):
    base = open_base("sd15", tiny_sd15, "int8")
    with base.using("unet", on_device=False):
        assert not quantized(base.module("unet"))
    for _ in range(2):
        with base.using("unet"):
            assert quantized(base.module("unet"))
    assert base.module("unet") is None


def test_a_network_for_guidance_is_quantized_as_the_denoiser_is(tiny_model):
    base = open_base("ideogram4", tiny_model("ideogram4"), "int8")
    with base.using("transformer", "unconditional_transformer"):
        layers = quantized(base.module("unconditional_transformer"))
        assert layers == quantized(base.module("transformer")) != []
        assert all(name.startswith("layers.") for name in layers)


def test_adapters_are_not_quantized_when_their_component_is_moved_again(tiny_sd15):
    from peft import LoraConfig

    base = open_base("sd15", tiny_sd15, "int8")
    base.require("unet")
    base.module("unet").add_adapter(LoraConfig(target_modules=["to_q"]))
    before = quantized(base.module("unet"))
    base.require("unet")
    assert quantized(base.module("unet")) == before
