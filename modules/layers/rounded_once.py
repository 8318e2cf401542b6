"""Arithmetic whose result is rounded once to a lower precision, in one operation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def rounded_once(function: Callable[..., Tensor], first: Tensor, second: Tensor, dtype: torch.dtype) -> Tensor:
    """function(first, second) in the precision of these two, rounded to `dtype`. They must not need gradients.

    function: torch.add, torch.sub or torch.mul.
    """
    if torch.compiler.is_compiling():  # it fuses the cast by itself
        return function(first, second).to(dtype)
    shape = torch.broadcast_shapes(first.shape, second.shape)
    return function(first, second, out=torch.empty(shape, dtype=dtype, device=first.device))
