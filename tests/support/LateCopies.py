"""The copies of a stream on a GPU that is not there, which are done as late as they may be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


class LateCopies:
    """Copies, in the order in which they were started; what one writes to is spoiled until it is done.

    They keep nothing alive, as on a GPU, whose allocator gives freed memory to others at once. Where the memory on the
    device is freed meanwhile, what is copied stays spoiled and `num_lost` counts it. For pinned memory it does not
    matter, because its allocator waits for the copies. A copy may read what one before it writes.
    """

    def __init__(self) -> None:
        self.num_started = 0
        self.num_lost = 0
        self._waiting: list[_Copy] = []

    def start(self, target: Tensor, source: Tensor, from_device: bool) -> None:
        memory = StorageWeakRef((source if from_device else target).untyped_storage())
        layout = target.storage_offset(), target.shape, target.stride()
        values = self._coming(source)
        values = source.clone() if values is None else values
        self._waiting.append(_Copy(values, StorageWeakRef(target.untyped_storage()), layout, memory))
        self.num_started += 1
        spoil(target)

    def _coming(self, tensor: Tensor) -> Tensor | None:
        """What `tensor` gets by the last copy to it that is not done, if there is one."""
        key = tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
        return next((one.values for one in reversed(self._waiting) if one.key == key), None)

    def finish(self, number: int) -> None:
        """Does the first `number` of all copies that were started, as far as they are not done."""
        while self._waiting and self.num_started - len(self._waiting) < number:
            copy = self._waiting.pop(0)
            if copy.device_memory.expired():
                self.num_lost += 1
            else:
                copy.make()


@dataclass
class _Copy:
    """device_memory: what it reads or writes on the device."""

    values: Tensor
    target: StorageWeakRef
    layout: tuple[int, torch.Size, tuple[int, ...]]
    device_memory: StorageWeakRef

    @property
    def key(self) -> tuple[object, ...]:
        return self.target.cdata, *self.layout, self.values.dtype

    def make(self) -> None:
        storage = torch.UntypedStorage._new_with_weak_ptr(self.target.cdata)
        if storage is not None:
            torch.empty(0, dtype=self.values.dtype).set_(storage, *self.layout).copy_(self.values)


def spoil(target: Tensor) -> None:
    """Leaves NaN, or bytes that are NaN in every floating-point format, and nonsense in other integers."""
    if target.is_floating_point():
        target.fill_(math.nan)
    elif target.dtype == torch.bool:
        target.fill_(True)
    else:
        target.fill_(255 if target.dtype == torch.uint8 else -1)
