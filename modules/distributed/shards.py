"""Tensors of which each rank holds some rows, as `fully_shard` makes them of parameters."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import torch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank holds only some rows of `tensor`."""
    # Not imported here: it takes a second, and some builds of PyTorch lack it. Whoever shards has imported it.
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(tensor, tensors.DTensor)


def full_tensor(tensor: Tensor) -> Tensor:
    """All rows of a sharded tensor, gathered from all ranks, which must all call it; any other tensor itself."""
    return cast("DTensor", tensor).full_tensor() if is_sharded(tensor) else tensor


@torch.no_grad()
def assign(target: Tensor, values: Tensor) -> None:
    """Copies `values` into `target`. A sharded target takes its rows of full values, without communication."""
    if is_sharded(target) and not is_sharded(values):
        sharded = cast("DTensor", target)
        rows = values.chunk(sharded.device_mesh.size())  # as fully_shard divides them; the last ranks may get none
        rank = sharded.device_mesh.get_local_rank()
        if rank < len(rows):
            sharded.to_local().copy_(rows[rank])
    else:
        target.copy_(values)


@torch.no_grad()
def swap_values(values: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
    """Gives each tensor new values, cast to its dtype; returns the old ones, bit for bit.

    The storage of a plain tensor is replaced, which costs no memory. A sharded parameter keeps its storage, from which
    `fully_shard` gathers: a new `data` would be ignored.
    """
    own = {tensor: tensor.detach().clone() if is_sharded(tensor) else tensor.data for tensor in values}
    for tensor, value in values.items():
        if is_sharded(tensor):
            tensor.copy_(value)
        else:
            tensor.data = value.to(tensor.dtype)
    return own
