"""Parameters whose values are still in a file: ranks that share a model read only the rows that each is to hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

ReadRows = Callable[[int, int], Tensor]
"""(first row, row after the last) -> these rows, in the dtype of the parameter."""


def placeholder(shape: Sequence[int], dtype: torch.dtype, read_rows: ReadRows) -> nn.Parameter:
    """A frozen parameter on the CPU that takes no memory; its values are NaN, so that using them does not go unnoticed.

    It is not on the meta device, where adapters of its layer would be created as well.
    """
    param = nn.Parameter(torch.full((), math.nan, dtype=dtype).expand(*shape), requires_grad=False)
    param.read_rows = read_rows  # type: ignore[attr-defined] # so that it lives as long as the parameter
    return param


def reader_of(param: Tensor) -> ReadRows | None:
    """What reads the values of a placeholder; None for other tensors."""
    return cast("ReadRows | None", getattr(param, "read_rows", None))


def has_placeholders(module: Any) -> bool:
    """Whether `module` is one with placeholders, as opposed to other components of a pipeline."""
    return isinstance(module, nn.Module) and any(reader_of(param) for param in module.parameters())


def move_to_meta(module: nn.Module) -> dict[str, ReadRows]:
    """Replaces the placeholders in `module` by parameters on the meta device; returns their readers by name."""
    readers = {}
    for path, part in module.named_modules():
        for name, param in part.named_parameters(recurse=False):
            if reader := reader_of(param):
                readers[f"{path}.{name}" if path else name] = reader
                empty = torch.empty(param.shape, dtype=param.dtype, device="meta")
                part.register_parameter(name, nn.Parameter(empty, requires_grad=param.requires_grad))
    return readers
