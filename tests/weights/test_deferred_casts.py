"""Components are loaded a layer at a time into the form in which they stay."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusionPipeline
from torch import nn
from torch.profiler import ProfilerActivity, profile

from modules.config.ModelConfig import ModelConfig
from modules.config.quantizations import QUANTIZATIONS
from modules.distributed.placeholders import reader_of
from modules.families.registry import FAMILIES
from modules.layers.QuantizedLinear import QuantizedLinear
from modules.weights import deferred_casts
from modules.weights.BaseModel import BaseModel
from modules.weights.deferred_casts import compute
from modules.weights.libraries import import_pipeline
from modules.weights.load_component import is_cast
from modules.weights.safe import load_tensors, save_tensors
from modules.weights.single_file import save_single_file
from tests.support import alike_families
from tests.support.alike_families import once_for_each
from tests.support.gguf_file import write_gguf

CPU = torch.device("cpu")
PARTS = ("transformer", "text_encoder_2")
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture(autouse=True)
def every_cast_waits(monkeypatch):
    """As those of a large model do."""
    monkeypatch.setattr(deferred_casts, "LEAST_BYTES", 0)


@pytest.fixture(scope="module")
def deep_flux(tiny_model, tmp_path_factory):
    """A FLUX.1 of which no layer has more than a few per cent."""
    from diffusers import FluxTransformer2DModel
    from transformers import T5Config, T5EncoderModel

    folder = shutil.copytree(tiny_model("flux1"), tmp_path_factory.mktemp("deep") / "flux")
    config = FluxTransformer2DModel.load_config(folder / "transformer")
    torch.manual_seed(0)
    FluxTransformer2DModel.from_config({**config, "num_layers": 4, "num_single_layers": 8}).save_pretrained(
        folder / "transformer"
    )
    text = T5Config.from_pretrained(folder / "text_encoder_2", num_layers=12)
    T5EncoderModel(text).save_pretrained(folder / "text_encoder_2")
    return folder


def open_base(folder: Path, quantization: str = "none", **settings) -> BaseModel:
    settings = {"weight_dtype": "bfloat16", "text_encoder_quantization": quantization, **settings}
    return BaseModel(
        FAMILIES["flux1"], ModelConfig(base=str(folder), denoiser_quantization=quantization, **settings), CPU
    )


def peak_bytes(run: Callable[[], object], *mapped: Path) -> int:
    """The most memory that tensors take during `run`, beside the files that are mapped into memory."""
    gc.collect()  # the model of an earlier measurement, freed during this one, would count as less than nothing
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    sizes = {path.stat().st_size for path in mapped}  # reported as allocations of this size, and never as freed
    events = [one for one in profiled.profiler.kineto_results.events() if one.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        now += 0 if event.nbytes() in sizes else event.nbytes()
        most = max(most, now)
    return most


def num_bytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("quantization", ["none", *QUANTIZATIONS])
def test_loading_takes_the_final_form_and_one_layer(quantization, part, deep_flux):
    if quantization != "none" and (package := QUANTIZATIONS[quantization].package):
        pytest.importorskip(package, reason="an optional package")
    base = open_base(deep_flux, quantization)
    peak = peak_bytes(lambda: base.require(part), *(deep_flux / part).glob("*.safetensors"))
    module = base.module(part)
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    layer = 4 * max(layer.in_features * layer.out_features for layer in layers)  # in float32
    assert num_bytes(module) <= peak <= 1.15 * num_bytes(module) + layer


@pytest.mark.parametrize("kind", ["float8 of ComfyUI", "GGUF"])
def test_so_does_a_file_of_the_denoiser(kind, deep_flux, tmp_path):
    tensors = load_tensors(deep_flux / "transformer" / WEIGHTS)
    if kind == "GGUF":
        pytest.importorskip("gguf", reason="an optional package")
        file, quantization = tmp_path / "flux.gguf", "none"
        write_gguf(file, tensors, "Q8_0")
    else:
        file, quantization = tmp_path / "flux.safetensors", "int8"
        save_tensors(file, in_float8(tensors))
    base = open_base(deep_flux, quantization, denoiser=str(file))
    peak = peak_bytes(lambda: base.require("transformer"), file)
    final = num_bytes(base.module("transformer"))
    # the quantized layers of a GGUF file stay in it
    assert peak <= (0.5 * final if kind == "GGUF" else 1.15 * final + 4 * 32 * 160)


_LOAD = """
import sys, threading, time
import torch
from modules.config.ModelConfig import ModelConfig
from modules.families.registry import FAMILIES
from modules.weights.BaseModel import BaseModel

def megabytes(name):
    lines = dict(line.split(":") for line in open("/proc/self/status"))
    return int(lines[name].split()[0]) / 1000

def load(folder):
    settings = {"weight_dtype": "bfloat16", "text_encoder_quantization": "int8"}
    base = BaseModel(FAMILIES["flux1"], ModelConfig(base=folder, **settings), torch.device("cpu"))
    base.require("text_encoder_2")
    return base.module("text_encoder_2")

load(sys.argv[1])  # so that everything is imported
open("/proc/self/clear_refs", "w").write("5")  # resets VmHWM
before, resident, private = megabytes("RssAnon"), megabytes("VmRSS"), []

def watch():
    while True:
        private.append(megabytes("RssAnon"))
        time.sleep(0.001)

threading.Thread(target=watch, daemon=True).start()
module = load(sys.argv[2])
final = sum(parameter.nbytes for parameter in module.parameters()) / 1e6
print(final, max(private) - before, megabytes("VmHWM") - resident)
"""


@pytest.mark.proof
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_system_counts_no_more(deep_flux, tmp_path):
    from transformers import T5Config, T5EncoderModel

    folder = shutil.copytree(deep_flux, tmp_path / "large")
    config = {"d_model": 1024, "d_ff": 2816, "d_kv": 64, "num_heads": 16, "num_layers": 12}
    large = T5EncoderModel(T5Config.from_pretrained(folder / "text_encoder_2", **config))
    large.save_pretrained(folder / "text_encoder_2")
    stored = sum(file.stat().st_size for file in (folder / "text_encoder_2").glob("*.safetensors")) / 1e6
    command = [sys.executable, "-c", _LOAD, str(deep_flux), str(folder)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    final, private, resident = map(float, output.splitlines()[-1].split())
    shard = 4 * 1024 * 2816 / 1e6  # the largest layer in float32
    assert private < 1.15 * final + 2 * shard < 0.7 * stored / 2
    assert resident < 1.15 * final + 2 * shard + stored  # with the pages of the file


def in_float8(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """With a scale for each matrix of the blocks, as ComfyUI stores them."""
    stored = {}
    for name, value in tensors.items():
        if "blocks." in name and name.endswith(".weight") and value.dim() == 2:
            scale = value.abs().max() / 448
            stored[name] = (value / scale).to(torch.float8_e4m3fn)
            stored[name.replace(".weight", ".scale_weight")] = scale
        else:
            stored[name] = value
    return stored


def loaded_state(monkeypatch, least_bytes: int, open_base: Callable[[], BaseModel], *parts: str) -> list[object]:
    """All that can differ between two loaded models."""
    monkeypatch.setattr(deferred_casts, "LEAST_BYTES", least_bytes)
    base = open_base()
    base.require(*parts)
    state: list[object] = []
    for part in parts:
        module = base.module(part)
        named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]
        state += [module.training, len(list(module.parameters()))]
        for name, value in named:
            state += [name, type(value), value.dtype, value.stride(), value.requires_grad, bits(value)]
    return state


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


@once_for_each(alike_families.encoders, "name")
def test_text_encoders_are_bit_for_bit_those_that_are_cast_at_once(name, tiny_model, monkeypatch):
    folder, family = tiny_model(name), FAMILIES[name]

    def opened() -> BaseModel:
        config = ModelConfig(base=str(folder), weight_dtype="float16", text_encoder_quantization="int8")
        return BaseModel(family, config, CPU)

    waiting, at_once = (loaded_state(monkeypatch, least, opened, *family.text.encoders) for least in (0, 2**60))
    assert waiting == at_once


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sd3", {"weight_dtype": "float16"}),  # in which a part of T5 stays in float32
        ("sd15", {"weight_dtype": "bfloat16", "channels_last": True, "denoiser_quantization": "int8"}),
    ],
)
def test_so_is_a_single_file(name, settings, tiny_model, tmp_path, monkeypatch):
    family, folder, file = FAMILIES[name], tiny_model(name), tmp_path / "model.safetensors"
    save_single_file(file, family, import_pipeline(family.pipeline).from_pretrained(folder).components)

    def opened() -> BaseModel:
        return BaseModel(family, ModelConfig(base=str(file), config_folder=str(folder), **settings), CPU)

    parts = *family.denoisers, family.vae, *family.text.encoders
    waiting, at_once = (loaded_state(monkeypatch, least, opened, *parts) for least in (0, 2**60))
    assert waiting == at_once


def test_ranks_that_share_a_denoiser_read_only_rows_of_its_file(deep_flux, tmp_path):
    tensors = load_tensors(deep_flux / "transformer" / WEIGHTS)
    save_tensors(tmp_path / "flux.safetensors", in_float8(tensors))
    whole, shared = (open_base(deep_flux, denoiser=str(tmp_path / "flux.safetensors")) for _ in range(2))
    whole.require("transformer")
    peak = peak_bytes(
        lambda: shared.require("transformer", on_device=False, lazily=True), tmp_path / "flux.safetensors"
    )
    assert peak < 0.1 * num_bytes(whole.module("transformer"))
    for name, weight in whole.module("transformer").named_parameters():
        if "blocks" in name and weight.dim() == 2:
            assert torch.equal(reader_of(shared.module("transformer").get_parameter(name))(3, 9), weight[3:9])


def test_text_encoders_of_a_single_file_are_quantized_on_the_cpu_too(tiny_sd15, tmp_path):
    pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
    save_single_file(tmp_path / "sd.safetensors", FAMILIES["sd15"], pipe.components)
    settings = {"config_folder": str(tiny_sd15), "text_encoder_quantization": "int8"}
    base = BaseModel(FAMILIES["sd15"], ModelConfig(base=str(tmp_path / "sd.safetensors"), **settings), CPU)
    with base.using("text_encoder"):
        assert any(isinstance(layer, QuantizedLinear) for layer in base.module("text_encoder").modules())


def test_a_weight_that_waits_can_be_used_but_not_changed():
    values = torch.randn(6, 4)
    with deferred_casts.deferred_casts():
        waiting = values.to(torch.bfloat16)
        query, key = waiting.chunk(2)
    assert "DeferredTensor" in repr(query)
    assert torch.equal(waiting, values.bfloat16())
    assert float(key.float().sum()) == float(values.bfloat16()[3:].float().sum())
    with pytest.raises(TypeError, match="would change a weight that is not computed yet"):
        waiting.zero_()


def test_parts_of_a_joined_weight_do_not_keep_all_of_it():
    with deferred_casts.deferred_casts():
        query, key = torch.randn(6, 4).to(torch.bfloat16).chunk(2)
    layer = nn.Module()
    layer.query, layer.tied = nn.Parameter(query), nn.Parameter(key)
    layer.key = layer.tied
    compute(layer)
    assert layer.key is layer.tied
    assert [weight.untyped_storage().nbytes() for weight in layer.parameters()] == [query.nbytes, key.nbytes]


@pytest.mark.parametrize(("dtype", "waits"), [("float32", False), ("bfloat16", True)])
def test_nothing_waits_where_the_files_have_the_type_of_the_weights(dtype, waits, tiny_sd15, monkeypatch):
    entered = []
    begin = deferred_casts.deferred_casts
    monkeypatch.setattr(deferred_casts, "deferred_casts", lambda: (entered.append(True), begin())[1])
    config = ModelConfig(base=str(tiny_sd15), weight_dtype=dtype)
    base = BaseModel(FAMILIES["sd15"], config, CPU)
    base.require("vae", "text_encoder")
    assert len(entered) == (2 if waits else 0)
    assert {param.dtype for param in base.module("vae").parameters()} == {getattr(torch, dtype)}


@pytest.mark.parametrize(
    ("name", "stored", "dtype", "is_so"),
    [
        ("model.safetensors", torch.float32, torch.float32, False),
        ("model.safetensors", torch.float16, torch.float32, True),
        ("model.safetensors", torch.bfloat16, torch.bfloat16, True),  # some may be kept in float32
        ("pytorch_model.bin", torch.float32, torch.float32, True),  # whose types are not known before it is read
    ],
)
def test_casts_are_known_before_a_component_is_loaded(name, stored, dtype, is_so, tmp_path):
    tensors = {"weight": torch.zeros(3, dtype=stored), "position_ids": torch.arange(3)}
    if name.endswith(".bin"):
        torch.save(tensors, tmp_path / name)
    else:
        save_tensors(tmp_path / name, tensors)
    assert is_cast(tmp_path, dtype) is is_so


def test_files_that_can_not_be_read_are_left_to_what_loads_them(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"none")
    assert is_cast(tmp_path, torch.float32)
    assert is_cast(tmp_path / "nowhere", torch.float32)
