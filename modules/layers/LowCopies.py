"""Trained float32 weights in the precision that a pass computes in: those of a block are cast at once.

Autocast casts them one by one, all of a model before any is freed, and again where checkpointed blocks are computed
again; then their gradients one by one. Copies of all layers would take as much as gradients in that precision, so only
those of the block that was computed last are kept, and none once the backward pass is through with it.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import is_
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from modules.distributed.shards import is_sharded

Weights = tuple[Tensor, ...]


class _Copy(NamedTuple):
    """Of the weights of a layer. versions: of these when they were copied."""

    weights: Weights
    low: Weights
    versions: tuple[int, ...]


class HasWeights(Protocol):
    """A layer whose weights are cast. block: the name of that which it is in."""

    copies: LowCopies
    block: str

    def weights_to_cast(self) -> Weights | None: ...


def share_copies(layers: Mapping[str, HasWeights]) -> None:
    """Lets these layers of a model, by their paths, use copies of the weights of the block that each is in."""
    copies, sizes = LowCopies(), Counter(block for path in layers for block in _blocks_around(path))
    for path, layer in layers.items():
        layer.copies = copies
        layer.block = next((block for block in _blocks_around(path) if sizes[block] > 1), "")
        copies.add(layer)


def _blocks_around(path: str) -> Iterator[str]:
    """The elements of lists of modules that a layer is in, innermost first."""
    names = path.split(".")
    return (".".join(names[:end]) for end in range(len(names) - 1, 0, -1) if names[end - 1].isdigit())


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

    def add(self, layer: HasWeights) -> None:
        self._blocks.setdefault(layer.block, []).append(weakref.ref(layer))

    def of(self, weights: Weights, block: str, dtype: torch.dtype) -> Weights:
        """The weights of a layer in that block in this precision."""
        if all(weight.dtype == dtype for weight in weights):
            return weights
        copy = self._copies.get(id(weights[0]))
        if copy is None or not _is_current(copy, weights, dtype):
            copy = self._cast(weights, block, dtype)
        return copy.low

    def forget(self) -> None:
        self._copies = {}

    def _cast(self, weights: Weights, block: str, dtype: torch.dtype) -> _Copy:
        """Casts those of the whole block, into tensors of their own: a pass may still need former copies."""
        layers = [ref() for ref in self._blocks.get(block, ())]
        found = [layer.weights_to_cast() for layer in layers if layer is not None]
        others = (each for each in found if each and each[0] is not weights[0] and not any(map(is_sharded, each)))
        changed = [weights, *others]
        low = iter(_AtOnce.apply(self, dtype, *(weight for each in changed for weight in each)))
        copies = {
            id(each[0]): _Copy(each, tuple(islice(low, len(each))), tuple(weight._version for weight in each))
            for each in changed
        }
        self._copies = copies
        return copies[id(weights[0])]


class _AtOnce(torch.autograd.Function):
    """Casts weights of a block to a dtype, and their gradients back, in one operation each."""

    @staticmethod
    def forward(ctx: Any, copies: LowCopies, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.copies = copies
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        results = _cast_at_once(tensors, [dtype] * len(tensors))
        needed = ctx.needs_input_grad[2:]
        ctx.mark_non_differentiable(*(result for result, needs in zip(results, needed, strict=True) if not needs))
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.copies.forget()  # the block is done, also where a checkpoint computed it again
        there = [(number, gradient) for number, gradient in enumerate(gradients) if gradient is not None]
        cast = _cast_at_once([gradient for _, gradient in there], [ctx.dtypes[number] for number, _ in there])
        result: list[Tensor | None] = [None] * len(gradients)
        for (number, _), full in zip(there, cast, strict=True):
            result[number] = full
        return None, None, *result


def _cast_at_once(tensors: Sequence[Tensor], dtypes: list[torch.dtype]) -> list[Tensor]:
    results = [torch.empty_like(tensor, dtype=dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)]
    torch._foreach_copy_(results, list(tensors))
    return results


def _is_current(copy: _Copy, weights: Weights, dtype: torch.dtype) -> bool:
    return (
        len(copy.weights) == len(weights)
        and all(map(is_, copy.weights, weights))
        and copy.versions == tuple(weight._version for weight in weights)
        and copy.low[0].dtype == dtype
        and copy.low[0].device == weights[0].device
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
