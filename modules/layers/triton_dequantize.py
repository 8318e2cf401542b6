"""Rows of int8 or float8 times their scales, in one kernel of Triton. Imported only where Triton can be used.

PyTorch's own kernels convert numbers of several dtypes one by one, which takes several times as long as reading them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_AT_A_TIME = 1024  # weights of a program, all in one row


@triton.jit
def _dequantize(codes, scales, values, columns, parts, is_float8: tl.constexpr, at_a_time: tl.constexpr):
    row = (tl.program_id(0) // parts).to(tl.int64)
    column = tl.program_id(0) % parts * at_a_time + tl.arange(0, at_a_time)
    inside = column < columns
    code = tl.load(codes + row * columns + column, mask=inside, other=0)
    if is_float8:
        # of integers, because older GPUs can't convert e4m3: bits seeemmm.. get the place that they have in float32
        bits = code.to(tl.int32)
        rest = bits & 127
        normal = ((rest << 20) + (120 << 23)).to(tl.float32, bitcast=True)  # the exponent's bias is 127 in place of 7
        number = tl.where(rest < 8, rest.to(tl.float32) * 0.001953125, normal)  # without a leading 1, units of 2^-9
        number = tl.where(rest == 127, float("nan"), number)
        number = tl.where(bits < 0, -number, number)
    else:
        number = code.to(tl.float32)
    value = number * tl.load(scales + row)
    tl.store(values + row * columns + column, value.to(values.dtype.element_ty), mask=inside)


def dequantize_rows(weight: Tensor, scale: Tensor, is_float8: bool, dtype: torch.dtype) -> Tensor:
    """[out, in] of int8[out, in], which may hold the bits of float8 (e4m3), and float32[out, 1]; rounded once."""
    values = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    rows, columns = weight.shape
    parts = triton.cdiv(columns, _AT_A_TIME)
    with torch.cuda.device_of(weight):
        _dequantize[rows * parts,](weight, scale, values, columns, parts, is_float8, _AT_A_TIME)
    return values
