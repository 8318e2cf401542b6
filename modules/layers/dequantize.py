"""The weight of a quantized layer: in one kernel on GPUs, where Triton can make it, else in PyTorch's operations.

A kernel is used only after it has given, in a trial, the values that PyTorch's operations give on the CPU, bit for bit.
What torch compiles has no kernels of its own: the compiler fuses the operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import torch
from torch import Tensor

from modules.layers.gguf_formats import block_sizes, dequantize_blocks, gguf_constants
from modules.layers.quantized_formats import GGUF, dequantize_in_steps

Kernel = Callable[[Tensor, Tensor, tuple[int, int], torch.dtype], Tensor]  # weight, scale, shape, dtype
_MOST_KERNELS = 64  # of a run, for all formats, precisions and modes; beyond torch's own limit of 8, compiling fails


def dequantize(weight: Tensor, scale: Tensor, quantization: str, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """The weight [out, in], rounded once to `dtype`. It must not need gradients.

    weight, scale, quantization: as in QuantizedLinear. shape: (out, in).
    """
    if weight.device.type == "cuda" and not torch.compiler.is_compiling():
        kernel = fused_kernel(weight.device, quantization, dtype)
        if kernel:
            return kernel(weight, scale, shape, dtype)
    return dequantize_in_steps(weight, scale, quantization, shape, dtype)


def fused_kernel(device: torch.device, quantization: str, dtype: torch.dtype) -> Kernel | None:
    """The one for weights in a format of QuantizedLinear; None for PyTorch's. The first call waits for a trial."""
    return None if quantization == "nf4" else _choose(device, quantization, dtype)[0]  # bitsandbytes has one


def unfused_reasons(device: torch.device, formats: Iterable[str], dtype: torch.dtype) -> list[str]:
    """Why some of these formats take more than one kernel on `device`, as lines for the log."""
    if device.type != "cuda":
        return []
    reasons: dict[str, list[str]] = {}
    for quantization in sorted({*formats} - {"nf4"}):
        if reason := _choose(device, quantization, dtype)[1]:
            reasons.setdefault(reason, []).append(quantization)
    return [
        f"Weights in {', '.join(names)} are dequantized in several kernels: {why}" for why, names in reasons.items()
    ]


@cache
def _choose(device: torch.device, quantization: str, dtype: torch.dtype) -> tuple[Kernel | None, str]:
    """(kernel, ""), or (None, why there is none)."""
    from torch.utils._triton import has_triton

    if not has_triton():
        return None, "torch finds no Triton for this GPU; install triton (triton-windows on Windows)"
    try:
        kernel = _kernel_of(quantization)
        is_right = _gives_the_same(kernel, device, quantization, dtype)
    except Exception as error:  # of whatever kind: Triton runs compilers and drivers. The reason is shown.
        lines = str(error).splitlines()
        return None, f"its kernel can't be made ({type(error).__name__}{': ' if lines else ''}{' '.join(lines[:1])})"
    return (kernel, "") if is_right else (None, "its kernel gives other values than PyTorch")


def _kernel_of(quantization: str) -> Kernel:
    if quantization.startswith(GGUF):
        return _compiled_blocks(quantization.removeprefix(GGUF))
    from modules.layers.triton_dequantize import dequantize_rows

    is_float8 = quantization == "float8"
    return lambda weight, scale, shape, dtype: dequantize_rows(weight, scale, is_float8, dtype)


def _compiled_blocks(name: str) -> Kernel:
    """What torch's compiler makes of the operations for a format of GGUF, for any number of blocks."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(_MOST_KERNELS, torch._dynamo.config.recompile_limit)
    compiled = torch.compile(dequantize_blocks, dynamic=True, fullgraph=True)

    def dequantized(weight: Tensor, constants: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        with torch.no_grad():  # else it would be compiled again where gradients are computed
            blocks = weight.detach().view(-1, block_sizes()[name])
            return compiled(blocks, name, constants.detach(), dtype).view(shape)

    return dequantized


def _gives_the_same(kernel: Kernel, device: torch.device, quantization: str, dtype: torch.dtype) -> bool:
    """Whether a kernel gives weights of all values that PyTorch's give, on two layers."""
    draws = torch.Generator().manual_seed(0)
    is_gguf = quantization.startswith(GGUF)
    width = block_sizes()[quantization.removeprefix(GGUF)] if is_gguf else 2048
    for rows in (96, 33):  # not only one size, which a compiler might take for the only one
        weight = torch.randint(-128, 128, (rows, width), generator=draws, dtype=torch.int8)
        scale = gguf_constants() if is_gguf else torch.rand(rows, 1, generator=draws)
        shape = (rows, -1 if is_gguf else width)
        on_device = weight.to(device), scale.to(device), shape, dtype
        found, expected = kernel(*on_device), dequantize_in_steps(weight, scale, quantization, shape, dtype)
        if not torch.equal(found.cpu().nan_to_num(), expected.nan_to_num()):
            return False
    return True
