"""Dequantizing: in how few operations, each of which is a kernel of its own on a GPU, and when in a single kernel."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from modules.config.quantizations import QUANTIZATIONS
from modules.layers import dequantize as dequantizing
from modules.layers.dequantize import dequantize, fused_kernel, unfused_reasons
from modules.layers.gguf_formats import block_sizes, gguf_constants
from modules.layers.quantized_formats import GGUF, dequantize_in_steps
from modules.layers.QuantizedLinear import quantize

CPU = torch.device("cpu")
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


# --- one kernel -------------------------------------------------------------------------------------------------------


@pytest.fixture
def with_kernel(monkeypatch):
    """Returns a function that lets a kernel be chosen for a format on the CPU, as on a GPU with Triton."""
    dequantizing._choose.cache_clear()

    def choose(kernel, quantization="int8", has_triton=True):
        monkeypatch.setattr("torch.utils._triton.has_triton", lambda: has_triton)
        monkeypatch.setattr(dequantizing, "_kernel_of", lambda name: kernel)
        return fused_kernel(CPU, quantization, torch.bfloat16)

    yield choose
    dequantizing._choose.cache_clear()


def right_kernel(weight, scale, shape, dtype):
    return dequantize_in_steps(weight, scale, "int8", shape, dtype)


def test_a_kernel_is_used_only_if_it_gives_the_same_values(with_kernel):
    assert with_kernel(right_kernel) is right_kernel
    dequantizing._choose.cache_clear()
    assert with_kernel(lambda *args: right_kernel(*args) * 1.01) is None
    dequantizing._choose.cache_clear()
    assert with_kernel(lambda weight, *rest: right_kernel(weight[:96], *rest)[:33]) is None  # right for one size only


def broken_compiler(quantization):
    raise RuntimeError("Failed to find C compiler.\nAnd more")


@pytest.mark.parametrize(
    ("has_triton", "reason"),
    [
        (False, "torch finds no Triton for this GPU; install triton (triton-windows on Windows)"),
        (True, "its kernel can't be made (RuntimeError: Failed to find C compiler.)"),
    ],
)
def test_why_a_format_takes_several_kernels_is_said_once_for_all(has_triton, reason, with_kernel, monkeypatch):
    assert with_kernel(right_kernel, has_triton=has_triton) is (right_kernel if has_triton else None)
    monkeypatch.setattr(dequantizing, "_kernel_of", broken_compiler)
    gpu = torch.device("cuda", 0)
    lines = unfused_reasons(gpu, ["int8", "nf4", "float8"], torch.bfloat16)
    assert lines == [f"Weights in float8, int8 are dequantized in several kernels: {reason}"]
    assert unfused_reasons(CPU, ["int8"], torch.bfloat16) == []  # where it costs nothing


@pytest.mark.parametrize("name", block_sizes())
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.proof)])
def test_a_format_of_gguf_compiles_into_one_kernel_for_any_number_of_blocks(name, backend):
    torch._dynamo.reset()
    with torch.compiler.set_stance(force_backend=backend):
        kernel = dequantizing._compiled_blocks(name)
        assert dequantizing._gives_the_same(kernel, CPU, GGUF + name, torch.bfloat16)
    torch._dynamo.reset()
