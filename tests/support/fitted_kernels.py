"""A stand-in for torch's compiler on a GPU, whose kernels round in their own way for each size they are made for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx


def fitted(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., tuple[Any, ...]]:
    """A backend of torch.compile that chooses the kernels of a graph by the first size that it is for."""
    sides = [side for one in inputs if isinstance(one, Tensor) for side in one.shape]
    factor = 1 + 2.0**-20 * (math.prod(map(_first_value, sides)) % 1021)

    def run(*values: Any) -> tuple[Any, ...]:
        return tuple(one * factor if isinstance(one, Tensor) else one for one in graph(*values))

    return run


def _first_value(side: int | torch.SymInt) -> int:
    return side.node.hint if isinstance(side, torch.SymInt) else side
