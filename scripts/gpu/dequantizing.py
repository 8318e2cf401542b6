"""Weights that are dequantized in one kernel: whether they are right, and what they add to a product in bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

from scripts.gpu.cases import Case, NotHere, is_cuda, needs_cuda
from scripts.gpu.ceilings import PRODUCTS, median_seconds

TIMED = ("int8", "float8", "nf4", "GGUF Q8_0", "GGUF Q4_K", "GGUF Q6_K")
MOST_ADDED = 1.12  # times the product in bfloat16, for the larger of PRODUCTS
ON_CPU = 8, 256, 64


def fused(device: str) -> Iterator[Case]:
    from modules.layers.gguf_formats import GGUF_FORMATS

    for quantization in ("int8", "float8", *(f"GGUF {name}" for name in GGUF_FORMATS)):
        yield quantization, partial(has_kernel, quantization, device)


def has_kernel(quantization: str, device: str) -> dict[str, Any]:
    """There is a kernel, and in its trial it gave the values of PyTorch's operations, bit for bit."""
    import torch

    from modules.layers.dequantize import unfused_reasons

    needs_cuda(device)
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    reasons = [line for dtype in dtypes for line in unfused_reasons(torch.device(device), [quantization], dtype)]
    return {"ok": not reasons, "reasons": reasons}


def times(device: str) -> Iterator[Case]:
    for shape in PRODUCTS[1:]:
        for quantization in TIMED:
            yield f"{' x '.join(map(str, shape))}, {quantization}", partial(timed, quantization, shape, device)


def timed(quantization: str, shape: tuple[int, int, int], device: str) -> dict[str, Any]:
    """Seconds of a layer's forward pass, and of the same with its weight in bfloat16."""
    import torch

    from modules.layers.gguf_formats import block_sizes, gguf_constants
    from modules.layers.QuantizedLinear import QuantizedLinear, quantize

    if quantization == "nf4" and not find_spec("bitsandbytes"):
        raise NotHere("needs the package bitsandbytes")
    rows, inputs, outputs = shape if is_cuda(device) else ON_CPU
    values = torch.randn(rows, inputs, device=device, dtype=torch.bfloat16)
    weight = torch.randn(outputs, inputs, device=device, dtype=torch.bfloat16)
    if quantization.startswith("GGUF "):
        name = quantization.removeprefix("GGUF ")
        num_blocks = inputs * outputs // (32 if name.endswith("_0") else 256)
        packed, scale = torch.zeros(num_blocks, block_sizes()[name], dtype=torch.int8, device=device), gguf_constants()
    else:
        packed, scale = quantize(weight, quantization)
    layer = QuantizedLinear((outputs, inputs), quantization, packed, scale.to(device), None, torch.bfloat16)
    with torch.no_grad():
        plain = median_seconds(lambda: torch.nn.functional.linear(values, weight), device)
        seconds = median_seconds(lambda: layer(values), device)
    ratio = seconds / plain
    is_large = shape == PRODUCTS[1]
    return {"ok": not is_cuda(device) or not is_large or ratio <= MOST_ADDED, "seconds": seconds, "ratio": ratio}
