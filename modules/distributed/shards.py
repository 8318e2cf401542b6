"""Tensors of which each rank holds some rows, as `fully_shard` makes them of parameters.

They are gathered with plain collectives: with those of DTensor itself, gloo ranks have crashed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class SharingGroup:
    """The ranks that together hold one copy of the model. rank: the number of this one among them."""

    group: dist.ProcessGroup
    rank: int
    size: int


def sharing_group(mesh: DeviceMesh) -> SharingGroup:
    """The group of this rank: a row of the mesh."""
    columns = mesh.ndim - 1
    return SharingGroup(mesh.get_group(columns), mesh.get_local_rank(columns), mesh.size(columns))


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank holds only some rows of `tensor`."""
    # Not imported here: it takes a second, and some builds of PyTorch lack it. Whoever shards has imported it.
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(tensor, tensors.DTensor)


def full_tensor(tensor: Tensor) -> Tensor:
    """All rows of a sharded tensor, gathered from the ranks that share it, which must all call it; any other tensor
    itself."""
    if not is_sharded(tensor):
        return tensor
    sharded = cast("DTensor", tensor)
    sharing = sharing_group(sharded.device_mesh)
    rows = -(-len(sharded) // sharing.size)  # on each rank but the last ones, which are padded
    own = local_part(tensor)
    padded = own.new_zeros(rows, *own.shape[1:])
    padded[: len(own)] = own
    full = own.new_empty(sharing.size * rows, *own.shape[1:])
    dist.all_gather_into_tensor(full, padded, group=sharing.group)
    return full if full.shape == sharded.shape else full[: len(sharded)].clone()


def local_part(tensor: Tensor) -> Tensor:
    """The rows that this rank holds, without a copy."""
    return cast("DTensor", tensor.detach()).to_local() if is_sharded(tensor) else tensor


@torch.no_grad()
def assign(target: Tensor, values: Tensor) -> None:
    """Copies `values` into `target`. A sharded target takes its rows of full values, without communication."""
    if is_sharded(target) and not is_sharded(values):
        sharded = cast("DTensor", target)
        sharing = sharing_group(sharded.device_mesh)
        rows = values.chunk(sharing.size)  # as fully_shard divides them; the last ranks may get none
        if sharing.rank < len(rows):
            local_part(target).copy_(rows[sharing.rank])
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
