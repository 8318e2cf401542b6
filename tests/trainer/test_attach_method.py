"""What attaching a method says of the model."""

import pytest
import torch

from modules.config.TrainConfig import TrainConfig
from modules.families.registry import FAMILIES
from modules.methods.parts import trained_in
from modules.methods.registry import METHODS
from modules.trainer import attach_method as attaching
from modules.weights.BaseModel import BaseModel


def test_the_log_says_which_formats_of_the_model_take_several_kernels(tiny_sd15, monkeypatch):
    model = {"base": str(tiny_sd15), "denoiser_quantization": "int8", "mixed_precision": "bf16"}
    config = TrainConfig(family="sd15", method="lora", model=model)
    base, method = BaseModel(FAMILIES["sd15"], config.model, torch.device("cpu")), METHODS["lora"]
    monkeypatch.setattr(
        attaching, "unfused_reasons", lambda device, formats, dtype: [f"{device} {sorted(formats)} {dtype}"]
    )
    lines = []
    attaching.attach_method(config, method, base, trained_in(method, base, config), report=lines.append)
    assert lines == ["cpu ['int8'] torch.bfloat16"]


@pytest.mark.parametrize(
    ("size", "rotation", "text"),
    [
        (0, False, "Matrix products in int8 in 10 of 40 quantized layers"),
        (0, True, "Matrix products in int8 in 10 of 40 quantized layers, 10 of them with rotated inputs"),
        (
            7,
            True,
            "Matrix products in int8 in 0 of 40 quantized layers: none has 7 million weights in multiples of 16 inp",
        ),
    ],
)
def test_the_log_says_how_many_layers_multiply_in_8_bits(size, rotation, text, tiny_sd15):
    model = {"base": str(tiny_sd15), "denoiser_quantization": "int8", "quantized_matmul": "on"}
    model |= {"quantized_matmul_size": size, "quantized_matmul_rotation": rotation}
    config = TrainConfig(family="sd15", method="lora", model=model)
    base, method = BaseModel(FAMILIES["sd15"], config.model, torch.device("cpu")), METHODS["lora"]
    lines = []
    attaching.attach_method(config, method, base, trained_in(method, base, config), report=lines.append)
    assert lines[0].startswith(text) if size else lines[0] == text
