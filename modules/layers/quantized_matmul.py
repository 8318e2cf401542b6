"""Matrix products in 8 bits: of a quantized weight, and of inputs that are quantized row by row as they come.

Both int8 and float8 (e4m3) work on the CPU, too. Each row of the inputs has a scale of its own, so that what a sample
gives does not depend on the others in its batch, nor on the number of ranks that share it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from modules.layers.quantized_formats import FLOAT8

LARGEST = {"int8": 127.0, "float8": torch.finfo(FLOAT8).max}  # the value that the largest number of a row gets
SIDE_STEP = 16  # both sides of a weight are multiples of it, as the kernels of GPUs require; cuBLAS and CUTLASS
_LEAST_ROWS = 32  # the product of int8 on GPUs takes more than 16
_MOST_SUMS = 2**25  # int32 values of a product that are held at a time: 128 MiB
_MOST_KERNELS = 64  # of a run, for all formats, precisions and passes; beyond torch's own limit of 8, compiling fails


def multiply_rows(rows: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, quantization: str) -> Tensor:
    """rows @ weight.T + bias, in the precision of the rows. They must not need gradients.

    rows: [M, in]. quantization: a key of LARGEST. weight, scale: as in QuantizedLinear.
    """
    codes, row_scale = _for(rows, quantize_rows)(rows, None, quantization)
    if quantization == "int8":
        return _of_int8(codes, weight.t(), row_scale, scale.t(), bias, rows.dtype)
    return _of_float8(codes, weight.view(FLOAT8).t(), row_scale, scale.t(), bias, rows.dtype)


def multiply_back(gradient: Tensor, weight: Tensor, scale: Tensor, quantization: str) -> Tensor:
    """gradient @ weight, for gradients [M, out] of `multiply_rows`; the rest as there.

    The sum is over the outputs, whose scales are thus multiplied into the gradients before these are quantized.
    """
    codes, row_scale = _for(gradient, quantize_rows)(gradient, scale.t(), quantization)
    turned = weight.t().contiguous()  # the kernels of GPUs want what is summed to be next to each other in both
    if quantization == "int8":
        return _of_int8(codes, turned.t(), row_scale, None, None, gradient.dtype)
    ones = torch.ones(1, len(turned), dtype=torch.float32, device=scale.device)
    return _of_float8(codes, turned.view(FLOAT8).t(), row_scale, ones, None, gradient.dtype)


def quantize_rows(rows: Tensor, factors: Tensor | None, quantization: str) -> tuple[Tensor, Tensor]:
    """(codes of the shape of `rows`, float32 scale of each row [M, 1]) of rows times factors.

    A row with a value that is not finite gets a scale that is not finite either, so that its products are not.
    """
    values = rows if factors is None else rows * factors
    largest = torch.linalg.vector_norm(values, float("inf"), 1, keepdim=True, dtype=torch.float32)
    scale = (largest / LARGEST[quantization]).clamp_(min=torch.finfo(torch.float32).tiny)
    values = values / scale
    return (values.round_().to(torch.int8) if quantization == "int8" else values.to(FLOAT8)), scale


def scale_sums(
    sums: Tensor, row_scale: Tensor, column_scale: Tensor | None, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """The values of sums of products of integers: int32[M, N] times the scales of both factors, plus a bias."""
    values = sums * row_scale
    if column_scale is not None:
        values = values.mul_(column_scale)
    if bias is not None:
        values = values.add_(bias)
    return values.to(dtype)


def _of_int8(
    codes: Tensor,
    other: Tensor,
    row_scale: Tensor,
    column_scale: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    finish = _for(codes, scale_sums)
    num_rows, num_columns = len(codes), other.shape[1]
    if torch.compiler.is_compiling() or num_rows * num_columns <= _MOST_SUMS:
        return finish(_int_mm(codes, other), row_scale, column_scale, bias, dtype)
    result = torch.empty(num_rows, num_columns, dtype=dtype, device=codes.device)
    at_a_time = max(_LEAST_ROWS, _MOST_SUMS // num_columns)
    for part, scales, place in zip(*(one.split(at_a_time) for one in (codes, row_scale, result)), strict=True):
        place.copy_(finish(_int_mm(part, other), scales, column_scale, bias, dtype))
    return result


def _int_mm(codes: Tensor, other: Tensor) -> Tensor:
    num_rows = len(codes)
    if num_rows >= _LEAST_ROWS:
        return torch._int_mm(codes, other)
    return torch._int_mm(F.pad(codes, (0, 0, 0, _LEAST_ROWS - num_rows)), other)[:num_rows]


def _of_float8(
    codes: Tensor, other: Tensor, row_scale: Tensor, column_scale: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    # GPUs give results of scaled rows in bfloat16 only, whose rounding is a tenth of that of the factors
    precision = dtype if codes.device.type == "cpu" else torch.bfloat16
    result = torch._scaled_mm(
        codes,
        other,
        scale_a=row_scale,
        scale_b=column_scale,
        bias=None if bias is None else bias.to(precision),
        out_dtype=precision,
        use_fast_accum=True,
    )
    return result.to(dtype)


# --- one kernel for what is around the products -----------------------------------------------------------------------


def _for(values: Tensor, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for tensors on this device: on GPUs with Triton, in one kernel."""
    if values.device.type != "cuda" or torch.compiler.is_compiling():
        return function
    return _fused(values.device, function)


@cache
def _fused(device: torch.device, function: Callable[..., Any]) -> Callable[..., Any]:
    from torch.utils._triton import has_triton

    if not has_triton():
        return function
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(_MOST_KERNELS, torch._dynamo.config.recompile_limit)
    return _without_gradients(torch.compile(function, dynamic=True, fullgraph=True))


def _without_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with torch.no_grad():  # else it would be compiled again where gradients are computed
            return function(*args)

    return call


# --- whether a device has them ----------------------------------------------------------------------------------------

_LEAST_CAPABILITY = {"int8": (8, 0), "float8": (8, 9)}  # of NVIDIA GPUs whose tensor cores multiply them
_TRIAL_ERROR = {"int8": 0.03, "float8": 0.08}  # relative, of products of normally distributed numbers; twice the usual


@cache
def matmul_problem(device: torch.device, quantization: str) -> str:
    """Why a device can't multiply in a format, for the middle of a sentence; "" if it can. The first call tries it."""
    if device.type == "cuda" and not torch.version.hip:
        found, least = torch.cuda.get_device_capability(device), _LEAST_CAPABILITY[quantization]
        if found < least:
            name = torch.cuda.get_device_name(device)
            return f"needs compute capability {_dotted(least)} and newer, and {name} has {_dotted(found)}"
    try:
        errors = _errors_of_trial(device, quantization)
    except Exception as error:  # of whatever kind: it is for PyTorch to say what a device lacks. The reason is shown.
        lines = str(error).splitlines()
        return f"fails here ({type(error).__name__}{': ' if lines else ''}{' '.join(lines[:1])})"
    return "" if max(errors) <= _TRIAL_ERROR[quantization] else "gives wrong results here"


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def _errors_of_trial(device: torch.device, quantization: str) -> list[float]:
    """Relative errors of both products, for few and for many rows."""
    draws = torch.Generator().manual_seed(0)
    make = partial(torch.randn, generator=draws)
    weight = make(96, 64)
    codes, scale = quantize_rows(weight, None, quantization)
    codes = codes.view(torch.int8)
    errors = []
    for num_rows in (3, 80):
        forward: Callable[..., Tensor] = partial(multiply_rows, bias=None)
        backward: Callable[..., Tensor] = multiply_back
        for values, expected, product in (
            (rows := make(num_rows, 64), rows @ weight.t(), forward),
            (rows := make(num_rows, 96), rows @ weight, backward),
        ):
            there = values.bfloat16().to(device), codes.to(device), scale.to(device)
            found = product(*there, quantization=quantization)
            errors.append(float((found.cpu().float() - expected).norm() / expected.norm()))
    return errors
