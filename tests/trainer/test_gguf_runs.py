"""Runs on a denoiser in a GGUF file."""

from __future__ import annotations

import numpy as np
import pytest
from diffusers import FluxPipeline

from modules.config.errors import ConfigError
from modules.layers.QuantizedLinear import QuantizedLinear
from modules.sampling.generation import ImageRequest
from modules.weights.safe import load_tensors, save_tensors
from tests.support.gguf_file import write_gguf
from tests.support.short_training import load_plainly, plain_picture

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
REQUEST = ImageRequest("a photo of a cat", "", seed=7, width=32, height=32, steps=2, guidance=3.0)
SAMPLED = ("sampling.at_end=true", "sampling.samples=[{prompt: a cat, width: 32, height: 32, steps: 1}]")


@pytest.mark.parametrize("quantization", ["Q8_0", "Q4_0"])
def test_a_lora_on_a_gguf_file_has_the_curve_of_its_dequantized_weights(
    quantization, tiny_model, make_config, train, tmp_path
):
    folder = tiny_model("flux1")
    pytest.importorskip("gguf", reason="an optional package")
    meant = write_gguf(tmp_path / "model.gguf", load_tensors(folder / WEIGHTS), quantization)
    save_tensors(tmp_path / "meant.safetensors", meant)

    def run(file, *more):
        settings = ("family=flux1", f"model.base={folder}", "lora.targets=linear", "data.bucket_step=16", *more)
        settings += (f"workspace_dir={tmp_path / file[:5]}",)
        return train(make_config(*settings, f"model.denoiser={tmp_path / file}"))

    swapped = ("model.gradient_checkpointing=true", "model.blocks_to_swap=2")
    packed, plain = run("model.gguf", *swapped, *SAMPLED), run("meant.safetensors", swapped[0])
    layers = packed.prepared.base.module("transformer").modules()
    assert sum(isinstance(layer, QuantizedLinear) for layer in layers) > 10
    # float32 on weights that lie elsewhere: matrix products may depend on their alignment in the last bit
    assert packed.callbacks.losses == pytest.approx(plain.callbacks.losses, rel=1e-5)
    assert packed.callbacks.samples

    pipe = FluxPipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    before = plain_picture(pipe, REQUEST)
    load_plainly(pipe, packed.callbacks.saved[0])
    assert np.abs(plain_picture(pipe, REQUEST) - before).max() > 1e-4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("method=full",), "can neither train nor be saved"),
        (("model.denoiser_quantization=int8",), "quantized already"),
        (("distributed_strategy=fsdp",), "can't be sharded"),
    ],
)
def test_what_it_can_not_do_is_refused_before_loading(settings, message, make_config, start):
    with pytest.raises(ConfigError, match=message):
        start(make_config("model.denoiser=model.gguf", *settings))
