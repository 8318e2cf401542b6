"""Runs on a quantized base model: they train, sample and resume exactly, and save adapters for the plain model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable

import numpy as np
import pytest
from diffusers import FluxPipeline
from PIL import Image

from modules.config.errors import UserError
from modules.config.files import save_config
from modules.config.quantizations import QUANTIZATIONS
from modules.config.TrainConfig import TrainConfig
from modules.distributed.Runtime import Runtime
from modules.layers.QuantizedLinear import QuantizedLinear
from modules.sampling.generation import ImageRequest
from modules.trainer.checks import check_device
from modules.weights.safe import load_tensors
from tests.support import rank_scenarios
from tests.support.RankPool import run_alone
from tests.support.short_training import load_plainly, plain_picture

REQUEST = ImageRequest("a photo of a cat", "", seed=7, width=32, height=32, steps=2, guidance=3.0)
# Everything that touches the weights of a step, of samples and of the validation loss.
OPTIONS = (
    "model.weight_dtype=bfloat16",
    "model.mixed_precision=bf16",
    "model.gradient_checkpointing=true",
    "ema.enabled=true",
    "data.validation_share=0.2",
    "validation.unit=steps",
    "validation.every=2",
    "sampling.at_end=true",
    "sampling.samples.0.prompt=a photo of a cat",
    "sampling.samples.0.width=32",
    "sampling.samples.0.height=32",
    "sampling.samples.0.steps=1",
)


def quantized(quantization: str) -> tuple[str, ...]:
    """The settings of a run with everything quantized; skips the test if a package is missing."""
    quantization, _, matmul = quantization.partition(" ")
    if package := QUANTIZATIONS[quantization].package:
        pytest.importorskip(package, reason="an optional package")
    in_8_bits = ("model.quantized_matmul=on", "model.quantized_matmul_size=0") if matmul else ()
    if matmul == "rotated":
        in_8_bits += ("model.quantized_matmul_rotation=true",)
    formats = f"model.denoiser_quantization={quantization}", f"model.text_encoder_quantization={quantization}"
    return (*formats, *in_8_bits)


@pytest.fixture
def flux(tiny_model, make_config) -> Callable[..., TrainConfig]:
    """Returns a function that makes the settings of a short LoRA run on a tiny FLUX.1."""
    common = ("family=flux1", f"model.base={tiny_model('flux1')}", "lora.targets=linear", "data.bucket_step=16")
    return lambda *overrides: make_config(*common, "batch_size=2", *overrides)


# float8 is kept as int8 is, by the same layer
@pytest.mark.parametrize("quantization", ["int8", "nf4", "int8 rotated"])
def test_a_lora_trains_resumes_exactly_and_works_in_plain_diffusers(quantization, flux, train, tiny_model, tmp_path):
    settings = (*quantized(quantization), *OPTIONS)
    straight = train(flux(*settings, "max_steps=5", f"workspace_dir={tmp_path / 'straight'}"))
    assert np.isfinite(straight.callbacks.losses).all()
    denoiser = straight.prepared.base.module("transformer")
    layers = [layer for layer in denoiser.modules() if isinstance(layer, QuantizedLinear)]
    forms = {(layer.in_8_bits, layer.rotation > 0) for layer in layers}
    assert forms == {("rotated" in quantization, "rotated" in quantization)}
    train(flux(*settings, "max_steps=3"))
    resumed = train(flux(*settings, "max_steps=5"), resume=True)
    assert resumed.callbacks.losses == straight.callbacks.losses[3:]
    for file, other in zip(straight.callbacks.saved, resumed.callbacks.saved, strict=True):
        expected, tensors = load_tensors(file), load_tensors(other)
        assert expected.keys() == tensors.keys()
        assert all(tensors[name].equal(expected[name]) for name in expected)
    (picture,) = (tmp_path / "straight" / "samples").rglob("*.png")
    assert Image.open(picture).size == (32, 32)

    pipe = FluxPipeline.from_pretrained(tiny_model("flux1"))
    pipe.set_progress_bar_config(disable=True)
    before = plain_picture(pipe, REQUEST)
    load_plainly(pipe, straight.callbacks.saved[0])
    assert np.abs(plain_picture(pipe, REQUEST) - before).max() > 1e-4


@pytest.mark.parametrize("quantization", ["int8", "nf4", "int8 matmul"])
def test_two_ranks_give_the_curve_of_one(quantization, flux, two_ranks, tmp_path):
    losses, digests = [], []
    for name, run in (("one", run_alone), ("two", two_ranks.run)):
        config = flux(
            *quantized(quantization),
            "text_encoder.train=true",
            "batch_size_mode=global",
            "batch_size=8",
            f"workspace_dir={tmp_path / name}",
        )
        save_config(config, tmp_path / f"{name}.yaml")
        outcome = run(rank_scenarios.train, config=str(tmp_path / f"{name}.yaml"))
        ranks = [outcome] if name == "one" else outcome
        losses += [rank["losses"] for rank in ranks]
        digests += [rank["digest"] for rank in ranks]
    assert losses[1] == losses[2] == pytest.approx(losses[0], rel=1e-4)
    assert digests[1] == digests[2]


@pytest.fixture
def stored_quantized(tiny_model, tmp_path):
    """A base whose transformer says that its file is quantized."""
    folder = shutil.copytree(tiny_model("flux1"), tmp_path / "base")
    path = folder / "transformer" / "config.json"
    quantization = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": quantization}))
    return folder


def test_full_training_of_a_base_that_is_stored_quantized_is_refused_before_anything_is_encoded(
    stored_quantized, flux, start, tmp_path
):
    with pytest.raises(UserError, match=r"method 'full': the transformer .* is quantized .*; choose"):
        start(flux("method=full", f"model.base={stored_quantized}"))
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_ranks_do_not_share_a_base_that_is_stored_quantized(stored_quantized, flux, start, tmp_path, monkeypatch):
    monkeypatch.setattr(Runtime, "shards", True)
    with pytest.raises(UserError, match=r"distributed_strategy fsdp: the transformer .* is quantized .*; choose"):
        start(flux("method=lora", f"model.base={stored_quantized}", "distributed_strategy=fsdp"))
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_a_device_that_can_not_multiply_in_8_bits_is_refused_by_a_dry_run_and_before_anything_is_encoded(
    flux, start, tmp_path, monkeypatch
):
    config = flux(*quantized("int8 matmul"))
    check_device(config)
    monkeypatch.setattr("modules.layers.quantized_matmul.matmul_problem", lambda device, name: f"{name} fails")
    for refuse in (check_device, start):
        with pytest.raises(UserError, match=r"model.quantized_matmul 'on' with .*: it int8 fails; set .* to off\."):
            refuse(config)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_an_embedding_trains_through_quantized_components(flux, train):
    words = ("embeddings.0.placeholder=number", "embeddings.0.initial_text=dog")
    trainer = train(flux(*quantized("int8"), "method=embedding", *words, "max_steps=3"))
    assert np.isfinite(trainer.callbacks.losses).all()
    assert trainer.callbacks.saved
