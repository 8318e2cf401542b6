"""Tensors of which each rank holds some rows, as `fully_shard` makes them of parameters.

They are gathered with plain collectives: with those of DTensor itself, gloo ranks have crashed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union, cast

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


class DividedRows:
    """A tensor whose rows (dim 0) are divided among several, such as those of different files, without a copy."""

    def __init__(self, parts: Sequence[Tensor]):
        self._parts = parts
        self.shape = torch.Size((sum(map(len, parts)), *parts[0].shape[1:]))
        self.dtype = parts[0].dtype

    def between(self, start: int, stop: int) -> Iterator[Tensor]:
        """The rows from `start` to before `stop`, one part of the tensor after the other."""
        for part in self._parts:
            rows = part[max(start, 0) : max(stop, 0)]
            if len(rows):
                yield rows
            start, stop = start - len(part), stop - len(part)


Saved = Union["Tensor", DividedRows]
"""A tensor of a backup."""


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
def assign(target: Tensor, values: Saved) -> None:
    """Copies `values` into `target`. A sharded target takes its rows of full values, without communication."""
    if isinstance(values, torch.Tensor) and (is_sharded(values) or not is_sharded(target)):
        target.copy_(values)
        return
    rows = values if isinstance(values, DividedRows) else DividedRows([values])
    own, start = local_part(target), first_row(target)
    done = 0
    for part in rows.between(start, start + len(own)):
        own[done : done + len(part)].copy_(part)
        done += len(part)


def first_row(tensor: Tensor) -> int:
    """The number of the first row of `tensor` that this rank holds."""
    if not is_sharded(tensor):
        return 0
    sharded = cast("DTensor", tensor)
    sharing = sharing_group(sharded.device_mesh)
    return sharing.rank * -(-len(sharded) // sharing.size)  # the last ranks may have fewer rows, or none


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
