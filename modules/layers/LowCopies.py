"""Adapters' float32 weights in the precision that a pass computes in: those of a block are cast at once.

Autocast casts them one by one, all of a model before any is freed, and again where checkpointed blocks are computed
again; then their gradients one by one. Copies of all layers would take as much as gradients in that precision, so only
those of the block that was computed last are kept, and none once a backward pass has begun to use what autograd holds
of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from modules.distributed.shards import is_sharded

Pair = tuple[Tensor, Tensor]
_Copy = tuple[Pair, Pair, tuple[int, int]]  # the factors, their copies, and the versions that were copied


class HasFactors(Protocol):
    """A layer with an adapter."""

    def factors(self) -> Pair | None: ...


class LowCopies:
    """The copies of a model's layers.

    A copy of this object, as of a model that is copied, knows no layers: theirs are then cast one by one.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, list[weakref.ref[Any]]] = {}
        self._copies: dict[int, _Copy] = {}  # of one block: id of the first factor -> copy
        _all.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return LowCopies, ()

    def add(self, layer: HasFactors, block: str) -> None:
        self._blocks.setdefault(block, []).append(weakref.ref(layer))

    def of(self, factors: Pair, block: str, dtype: torch.dtype) -> Pair:
        """The factors of a layer in that block in this precision."""
        if factors[0].dtype == factors[1].dtype == dtype:
            return factors
        copy = self._copies.get(id(factors[0]))
        if copy is None or not _is_current(copy, factors, dtype):
            copy = self._cast(factors, block, dtype)
        return copy[1]

    def forget(self) -> None:
        self._copies = {}

    def _cast(self, factors: Pair, block: str, dtype: torch.dtype) -> _Copy:
        """Casts those of the whole block, into tensors of their own: a pass may still need former copies."""
        layers = [ref() for ref in self._blocks.get(block, ())]
        pairs = [layer.factors() for layer in layers if layer is not None]
        others = (pair for pair in pairs if pair and pair[0] is not factors[0] and not any(map(is_sharded, pair)))
        changed = [factors, *others]
        whole = [factor for pair in changed for factor in pair]
        low = _AtOnce.apply(dtype, *whole)
        copies: dict[int, _Copy] = {}
        for number, pair in enumerate(changed):
            copies[id(pair[0])] = pair, (low[2 * number], low[2 * number + 1]), (pair[0]._version, pair[1]._version)
        self._copies = copies
        return copies[id(factors[0])]


class _AtOnce(torch.autograd.Function):
    """Casts several tensors to a dtype, and their gradients back, in one operation each."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        return tuple(_cast_at_once(tensors, [dtype] * len(tensors)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        there = [number for number, gradient in enumerate(gradients) if gradient is not None]
        cast = _cast_at_once([gradients[number] for number in there], [ctx.dtypes[number] for number in there])
        result: list[Tensor | None] = [None] * len(gradients)
        for number, gradient in zip(there, cast, strict=True):
            result[number] = gradient
        return None, *result


def _cast_at_once(tensors: Sequence[Tensor], dtypes: list[torch.dtype]) -> list[Tensor]:
    results = [torch.empty_like(tensor, dtype=dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)]
    torch._foreach_copy_(results, list(tensors))
    return results


def _is_current(copy: _Copy, factors: Pair, dtype: torch.dtype) -> bool:
    own, (low, _), versions = copy
    first, second = factors
    return (
        own[0] is first
        and own[1] is second
        and versions == (first._version, second._version)
        and low.dtype == dtype
        and low.device == first.device
    )


_all: weakref.WeakSet[LowCopies] = weakref.WeakSet()


def forget_casts() -> None:
    """Forgets all copies of weights in a lower precision, these and autocast's.

    Call it where parameters get other values without an operation of PyTorch, which autograd would know of. After a
    backward pass there are none of these copies, so that no optimizer step needs it.
    """
    torch.clear_autocast_cache()
    for copies in _all:
        copies.forget()
