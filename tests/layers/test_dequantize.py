"""Dequantizing: in how few operations, each of which is a kernel of its own on a GPU."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from modules.config.quantizations import QUANTIZATIONS
from modules.layers.dequantize import GGUF, dequantize
from modules.layers.gguf_formats import block_sizes, gguf_constants
from modules.layers.QuantizedLinear import quantize

OPERATIONS = {
    "int8": 1,
    "float8": 2,
    "nf4": 1,
    "GGUF BF16": 0,
    "GGUF Q4_0": 4,
    "GGUF Q4_1": 5,
    "GGUF Q5_0": 7,
    "GGUF Q5_1": 8,
    "GGUF Q8_0": 2,
    "GGUF Q2_K": 8,
    "GGUF Q3_K": 14,
    "GGUF Q4_K": 13,
    "GGUF Q5_K": 16,
    "GGUF Q6_K": 9,
    "GGUF IQ4_NL": 5,
    "GGUF IQ4_XS": 12,
}


class Operations(TorchDispatchMode):
    """Counts operations that are neither views nor allocations."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += not function.is_view and function is not torch.ops.aten.empty.memory_format
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("quantization", [*QUANTIZATIONS, *(GGUF + name for name in block_sizes())])
def test_a_weight_is_dequantized_in_few_operations(quantization):
    if quantization.startswith(GGUF):
        num_bytes = block_sizes()[quantization.removeprefix(GGUF)]
        weight, scale = torch.zeros(256, num_bytes, dtype=torch.int8), gguf_constants()
    else:
        if package := QUANTIZATIONS[quantization].package:
            pytest.importorskip(package, reason="an optional package")
        weight, scale = quantize(torch.ones(256, 64), quantization)
    with Operations() as operations:
        dequantize(weight, scale, quantization, (256, -1 if quantization.startswith(GGUF) else 64), torch.bfloat16)
    assert operations.count == OPERATIONS[quantization]
