"""The formats of quantized layers, and their values in PyTorch's operations: as few as each format allows."""

from __future__ import annotations

import torch
from torch import Tensor

from modules.layers.gguf_formats import dequantize_blocks
from modules.layers.rounded_once import rounded_once

BLOCK = 64  # weights that share a scale in nf4
FLOAT8 = torch.float8_e4m3fn
GGUF = "GGUF "  # before the name of one of its formats


def dequantize_in_steps(
    weight: Tensor, scale: Tensor, quantization: str, shape: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    """The weight [out, in], rounded once to `dtype`. It must not need gradients.

    weight, scale, quantization: as in QuantizedLinear. shape: (out, in).
    """
    if quantization == "nf4":
        return torch.ops.bitsandbytes.dequantize_4bit(weight.view(torch.uint8), scale, BLOCK, "nf4", shape, dtype)
    if quantization.startswith(GGUF):
        return dequantize_blocks(weight, quantization.removeprefix(GGUF), scale, dtype).reshape(shape)
    if quantization == "int8":
        return rounded_once(torch.mul, weight, scale, dtype)
    # float8 has no type promotion; the cast is exact, and the product is computed in float32
    return weight.view(FLOAT8).to(dtype).mul_(scale)
