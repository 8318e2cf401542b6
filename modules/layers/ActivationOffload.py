"""Activation offloading: the inputs of checkpointed blocks wait in system memory for the backward pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint
from torch.utils.weak import WeakTensorKeyDictionary

from modules.layers.HostMemory import HostBuffer, HostMemory
from modules.layers.transfers import Transfers

LEAST_BYTES = 2**20  # smaller tensors stay on the device: there is little to gain


class ActivationOffload:
    """Checkpoints blocks, and keeps what the backward pass needs of their inputs in system memory.

    The inputs of a block are copied to system memory while it runs, and leave the device when the next block starts. In
    the backward pass, they are copied back while the block after it is computed. What several blocks get is copied once
    in each direction, and so is what several inputs are views of.

    A block that is computed again gets the same bits with the same strides, so that offloading changes no result.
    """

    def __init__(self, device: torch.device, transfers: Transfers):
        self._device = device
        self._transfers = transfers
        self._memory = HostMemory(transfers.host_buffer)
        self._kept = WeakTensorKeyDictionary()  # an input, or what it is a view of -> its _Kept
        self._last: weakref.ref[_Call] | None = None  # weak: a graph may be dropped without a backward pass
        # copies that no computation waits for yet; until it does, the memory on the device must not be used again
        self._leaving: dict[_Kept, Any] = {}
        self._coming: dict[_Kept, Any] = {}

    def checkpoint(self, block: Callable[..., Any], *args: Any, **arguments: Any) -> Any:
        """`block(*args, **arguments)`, whose activations are computed again for the backward pass."""
        self._let_go()
        for kept in [*self._coming]:  # of a backward pass that ended early
            self._arrive(kept)
        call = _Call(self._last)
        self._last = weakref.ref(call)

        num_args, names = len(args), tuple(arguments)  # `run` lives on, and must not refer to the tensors themselves

        def run(*inputs: Any) -> Any:
            return block(*inputs[:num_args], **dict(zip(names, inputs[num_args:], strict=True)))

        # `checkpoint` saves tensors among its positional arguments; while the block runs, its own hooks replace these
        with saved_tensors_hooks(partial(self._pack, call), self._unpack):
            return checkpoint(run, *args, *arguments.values(), use_reentrant=False)

    def _pack(self, call: _Call, tensor: Tensor) -> _Saved:
        root = tensor if tensor._base is None else tensor._base
        if not self._is_worth_it(root):
            return _Saved(call, _Kept(tensor), tensor)
        kept = self._kept.get(root)
        if kept is None or kept.source_version != root._version:
            host = self._memory.split(root.nbytes)
            kept = self._kept[root] = _Kept(root, host)
            self._leaving[kept] = host.copy_from(_bytes(root.detach()), self._transfers)
        kept.num_uses += 1
        call.kept.append(kept)
        return _Saved(call, kept, tensor)

    def _is_worth_it(self, root: Tensor) -> bool:
        is_there = root.device == self._device and not isinstance(root, nn.Parameter)
        return is_there and root.nbytes >= LEAST_BYTES and torch.ops.aten.is_non_overlapping_and_dense(root)

    def _unpack(self, saved: _Saved) -> Tensor:
        kept, call = saved.kept, saved.call
        self._let_go(besides=call.kept)
        if kept.values is None:  # no block came after its own, or it is used a second time
            self._bring(kept)
        if kept in self._coming:
            self._arrive(kept)
        values = saved.tensor()
        if kept.num_uses == 1 and kept not in self._leaving:
            kept.values = None  # lives as long as the block that is computed again needs it
        before = call.before() if call.before else None
        if before is not None and not before.is_awaited:
            before.is_awaited = True
            for other in before.kept:
                if other.values is None:
                    self._bring(other)
        return values

    def _let_go(self, besides: Collection[_Kept] = ()) -> None:
        """Frees the device's memory of inputs that are in system memory, once computation waits for their copies."""
        for kept in [kept for kept in self._leaving if kept not in besides]:
            self._transfers.finish(self._leaving.pop(kept))
            kept.check_unchanged()
            kept.values = None

    def _bring(self, kept: _Kept) -> None:
        """Starts to copy an input back to the device."""
        assert kept.host is not None  # else its values never leave
        kept.values = torch.empty_strided(kept.shape, kept.strides, dtype=kept.dtype, device=self._device)
        self._coming[kept] = kept.host.copy_to(_bytes(kept.values), self._transfers)

    def _arrive(self, kept: _Kept) -> None:
        self._transfers.finish(self._coming.pop(kept))
        assert kept.values is not None  # since `_bring`
        kept.version = kept.values._version


class _Call:
    """A forward pass of a block. before: the call before it. kept: what it has in system memory."""

    def __init__(self, before: weakref.ref[_Call] | None):
        self.before = before
        self.kept: list[_Kept] = []
        self.is_awaited = False  # whether its backward pass is next


class _Kept:
    """A tensor for the backward pass. values: on the device, None while it is not there. host: in system memory; None
    for one that stays on the device."""

    def __init__(self, root: Tensor, host: HostBuffer | None = None):
        self.host = host
        self.values: Tensor | None = root.detach()  # not the tensor, whose graph may lead here
        self.version = self.source_version = root._version
        self.shape, self.strides, self.offset = root.shape, root.stride(), root.storage_offset()
        self.dtype = root.dtype
        self.num_uses = 0

    def check_unchanged(self) -> None:
        """Raises RuntimeError if the values were changed in place, as autograd does for tensors that it saves."""
        if self.values is not None and self.values._version != self.version:
            raise RuntimeError("an input of a checkpointed block was modified by an inplace operation")


class _Saved:
    """What autograd saves in place of `tensor`, which is that of `kept` or a view of it."""

    def __init__(self, call: _Call, kept: _Kept, tensor: Tensor):
        self.call = call
        self.kept = kept
        self._shape, self._strides = tensor.shape, tensor.stride()
        self._offset = tensor.storage_offset() - kept.offset

    def tensor(self) -> Tensor:
        """The tensor, when it is on the device."""
        self.kept.check_unchanged()
        values = self.kept.values
        assert values is not None
        if self.kept.host is None:
            return values
        return values.as_strided(self._shape, self._strides, values.storage_offset() + self._offset)


def _bytes(tensor: Tensor) -> Tensor:
    """Those of a dense tensor, in the order in which they are in memory."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
