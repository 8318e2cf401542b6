"""Components that were saved quantized by bitsandbytes are read without being dequantized."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
import torch
from torch import nn

from modules.config.ModelConfig import ModelConfig
from modules.families.registry import FAMILIES
from modules.layers.QuantizedLinear import QuantizedLinear
from modules.weights.BaseModel import BaseModel
from modules.weights.errors import WeightsError
from modules.weights.safe import load_tensors, save_tensors

bitsandbytes = pytest.importorskip("bitsandbytes", reason="an optional package")

FLUX = FAMILIES["flux1"]
PARTS = ("transformer", "text_encoder_2")


def open_base(folder, **settings) -> BaseModel:
    return BaseModel(FLUX, ModelConfig(base=str(folder), **settings), torch.device("cpu"))


def stored_nf4(name: str, weight: torch.Tensor, nested: bool) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """(the tensors that bitsandbytes saves for a weight, what it computes with)."""
    layer = bitsandbytes.nn.Linear4bit(
        weight.shape[1], weight.shape[0], bias=False, compress_statistics=nested, quant_type="nf4"
    )
    layer.weight = bitsandbytes.nn.Params4bit(weight, compress_statistics=nested, quant_type="nf4")
    layer = layer.to("cpu")
    used = bitsandbytes.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    return {f"{name}.{key}": value for key, value in layer.state_dict().items()}, used


def stored_int8(name: str, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    values, scales, _ = bitsandbytes.functional.int8_vectorwise_quant(weight.half())
    stored = {"weight": values, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return {f"{name}.{key}": value for key, value in stored.items()}, values * scales[:, None] / 127


@pytest.fixture
def prequantized(tiny_model, tmp_path):
    """Returns a function that quantizes components of a tiny FLUX.1: (its folder, weights by component and layer)."""

    def make(kind: str):
        folder = shutil.copytree(tiny_model("flux1"), tmp_path / kind.replace(" ", "_"))
        plain = open_base(folder)
        plain.require(*PARTS)
        used = {}
        for part in PARTS:
            (file,) = (folder / part).glob("*.safetensors")
            tensors = load_tensors(file)
            for name, layer in plain.module(part).named_modules():
                if isinstance(layer, nn.Linear) and "blocks" in name and not name.endswith("wo"):
                    weight = tensors.pop(f"{name}.weight")
                    stored, used[part, name] = (
                        stored_int8(name, weight) if kind == "int8" else stored_nf4(name, weight, kind == "nf4 nested")
                    )
                    tensors |= stored
            save_tensors(file, tensors)
            config = json.loads((folder / part / "config.json").read_text())
            formats = {"load_in_8bit": True} if kind == "int8" else {"bnb_4bit_quant_type": "nf4", "load_in_4bit": True}
            config["quantization_config"] = {"quant_method": "bitsandbytes", **formats}
            (folder / part / "config.json").write_text(json.dumps(config))
        return folder, used

    return make


@pytest.mark.parametrize("kind", ["int8", "nf4", "nf4 nested"])
def test_the_layers_compute_with_the_stored_weights(kind, prequantized, tiny_model):
    folder, used = prequantized(kind)
    base, plain = open_base(folder), open_base(tiny_model("flux1"))
    base.require(*PARTS)
    plain.require(*PARTS)
    assert len(used) > 5
    for (part, name), weight in used.items():
        layer = base.module(part).get_submodule(name)
        assert isinstance(layer, QuantizedLinear)
        torch.testing.assert_close(layer.dequantize(torch.float32), weight.float())
    for part in PARTS:
        layers = {name: layer for name, layer in base.module(part).named_modules() if type(layer) is nn.Linear}
        assert layers
        for name, layer in layers.items():
            assert torch.equal(layer.weight, plain.module(part).get_submodule(name).weight)
        assert not any(value.is_meta for value in [*base.module(part).parameters(), *base.module(part).buffers()])


def test_another_quantization_than_the_stored_one_and_a_missing_package_are_refused(prequantized, monkeypatch):
    folder, _ = prequantized("nf4")
    open_base(folder, denoiser_quantization="nf4")
    with pytest.raises(WeightsError, match=r"model\.denoiser_quantization 'int8': .* is stored in nf4; set it to none"):
        open_base(folder, denoiser_quantization="int8")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(WeightsError, match="stored in nf4, which needs the package bitsandbytes"):
        open_base(folder)


def test_what_can_not_be_read_is_refused_at_once(prequantized):
    folder, _ = prequantized("int8")
    path = folder / "transformer" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": {"quant_method": "torchao"}}))
    with pytest.raises(WeightsError, match=r"its transformer can't be loaded .*quantized by torchao"):
        open_base(folder)


def test_a_quantized_component_that_lacks_a_weight_is_refused(prequantized):
    folder, _ = prequantized("int8")
    (file,) = (folder / "transformer").glob("*.safetensors")
    tensors = load_tensors(file)
    del tensors["x_embedder.weight"]
    save_tensors(file, tensors)
    with pytest.raises(WeightsError, match=r"its weights lack x_embedder\.weight"):
        open_base(folder).require("transformer")
