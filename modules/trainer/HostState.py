"""Keeps the state of an optimizer in system memory and copies that of a few parameters to the device for a step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from modules.layers.HostMemory import HostBuffer, HostMemory
from modules.trainer.optimizers import SMALLEST_IN_RAM

if TYPE_CHECKING:
    from modules.layers.transfers import Transfers

PART_ELEMENTS = 2**24  # weights whose state is on the device together; a larger matrix alone
NUM_SLOTS = 2  # one for the parameters that are stepped, one for those whose state is copied meanwhile


class HostState:
    """The state of `optimizer`, which steps on the device as if its state were there: the results are the same bits.

    Between steps, the large state tensors of a parameter are views of a buffer in system memory. The device has room
    for two parts of the parameters: while one is stepped, the state of the next is copied there, and what was stepped
    is copied back. Parts that are stepped one by one are expected in the order of the last step.

    parts: the parameters that are stepped together, which are always the same. updates: whether the optimizer ever
        steps a parameter, and gets state for it.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parts: Sequence[list[nn.Parameter]],
        transfers: Transfers,
        updates: Callable[[Tensor], bool] = lambda param: True,
    ):
        self._optimizer = optimizer
        self._parts = parts
        self._transfers = transfers
        self._memory = HostMemory(transfers.host_buffer)
        self._homes: dict[int, _Home] = {}  # by the number of the part
        self._weights = [sum(param.numel() for param in filter(updates, part)) for part in parts]  # of each part
        self._homeless = dict(enumerate(self._weights))  # those of the parts that have had no home yet
        self._slots: list[Tensor | None] = [None] * NUM_SLOTS
        self._turn = 0
        self._followers: dict[int, int] = {}  # part -> the part that was stepped alone after it
        self._last_alone: int | None = None
        self._ahead: dict[int, _Fetched] = {}  # the part that is expected next, if it is copied already
        weakref.finalize(self, _let_arrive, transfers, self._ahead).atexit = False
        self.adopt()

    def adopt(self) -> None:
        """Takes over the state that the optimizer holds now, on whatever device it is."""
        self._transfers.synchronize()
        self._ahead.clear()
        self._homes.clear()
        for number in range(len(self._parts)):
            self._settle(number)

    def in_turn(self, numbers: Sequence[int]) -> Iterator[int]:
        """Yields each of these parts while its state is on the device; the caller steps it then.

        Parts without gradients are left out.
        """
        _let_arrive(self._transfers, self._ahead)
        waiting = [number for number in numbers if any(param.grad is not None for param in self._parts[number])]
        fetched = self._fetch(waiting[0]) if waiting else None
        for number, following in zip(waiting, [*waiting[1:], None], strict=True):
            current = fetched
            fetched = None if following is None else self._fetch(following)
            self._arrive(number, current)
            yield number
            self._store(number, current)

    @contextmanager
    def alone(self, number: int) -> Iterator[None]:
        """Context in which the caller steps this part, whose state is on the device then.

        Meanwhile, and until the next call, the state of the part that came next in the last step is copied there.
        """
        if number not in self._homes:
            yield
            self._settle(number)
            return
        current = self._ahead.pop(number, None)
        _let_arrive(self._transfers, self._ahead)  # of a part that did not come
        current = current or self._fetch(number)
        if self._last_alone is not None:
            self._followers[self._last_alone] = number
        self._last_alone = number
        following = self._followers.get(number, number)
        if following != number and (fetched := self._fetch(following)):
            self._ahead[following] = fetched
        self._arrive(number, current)
        yield
        self._store(number, current)

    def synchronize(self) -> None:
        """Waits until the state in system memory is that of the last step."""
        self._transfers.synchronize()

    def _fetch(self, number: int) -> _Fetched | None:
        """Starts to copy the state of a part to the device, if it has any; the optimizer does not have it yet."""
        home = self._homes.get(number)
        if home is None:
            return None
        slot = self._slot(home.buffer.num_bytes)
        copy = home.buffer.copy_to(slot, self._transfers)
        return _Fetched(copy, slot)

    def _arrive(self, number: int, fetched: _Fetched | None) -> None:
        """Lets the optimizer have the state of a part on the device, and the device wait for its copy."""
        if fetched is not None:
            self._transfers.finish(fetched.copy)
            fetched.shown = self._homes[number].show(self._optimizer, fetched.slot)

    def _slot(self, size: int) -> Tensor:
        """The next slot in turn. Copies are made in order: those of the part that had it before are done by then."""
        self._turn = (self._turn + 1) % NUM_SLOTS
        slot = self._slots[self._turn]
        if slot is None or slot.numel() < size:
            self._transfers.synchronize()
            device = self._parts[0][0].device
            slot = self._slots[self._turn] = torch.empty(size, dtype=torch.uint8, device=device)
        return slot[:size]

    def _store(self, number: int, fetched: _Fetched | None) -> None:
        """Starts to copy the state of a part, which was stepped, to system memory."""
        large = self._large_tensors(number)
        if fetched is None or not fetched.holds(large):
            self._settle(number)
            return
        home = self._homes[number]
        home.buffer.copy_from(fetched.slot, self._transfers)
        home.show(self._optimizer, home.buffer)

    def _settle(self, number: int) -> None:
        """Makes a buffer in system memory for the state of a part as it is, and waits until it is there."""
        large = self._large_tensors(number)
        if not large:
            return
        self._homeless.pop(number, None)
        self._homes.pop(number, None)  # its room is used again
        home = self._homes[number] = _Home.of(large, self._memory, self._to_come(number, large.values()))
        for tensor, own in zip(home.tensors, large.values(), strict=True):
            self._transfers.start(tensor.view(home.buffer), own)
        self._transfers.synchronize()  # before the tensors that are copied are freed
        home.show(self._optimizer, home.buffer)

    def _to_come(self, number: int, large: Iterable[Tensor]) -> int:
        """Bytes of the state that is still to be created, if it is as large as that of this part, which is the last."""
        num_bytes = sum(tensor.nbytes for tensor in large)
        return num_bytes * sum(self._homeless.values()) // max(1, self._weights[number])

    def _large_tensors(self, number: int) -> dict[tuple[nn.Parameter, str], Tensor]:
        return {
            (param, key): value
            for param in self._parts[number]
            for key, value in self._optimizer.state.get(param, {}).items()
            if isinstance(value, Tensor) and value.nbytes >= SMALLEST_IN_RAM
        }


@dataclass
class _Fetched:
    """The state of a part in a slot. copy: as `Transfers.start` returns it. shown: tensors that the optimizer has."""

    copy: Any
    slot: Tensor
    shown: list[Tensor] = field(default_factory=list)

    def holds(self, large: dict[tuple[nn.Parameter, str], Tensor]) -> bool:
        """Whether these are the tensors in the slot, changed in place, and no others."""
        return len(large) == len(self.shown) and all(map(_is, large.values(), self.shown))


@dataclass(frozen=True)
class _StateTensor:
    """A tensor of the state of `param` in a buffer of bytes."""

    param: nn.Parameter
    key: str
    start: int
    like: Tensor  # on the meta device

    def view(self, buffer: Tensor | HostBuffer) -> Tensor:
        values = buffer[self.start : self.start + self.like.nbytes].view(self.like.dtype)
        return values.as_strided(self.like.shape, self.like.stride(), values.storage_offset())


@dataclass
class _Home:
    """The state tensors of a part in system memory."""

    tensors: list[_StateTensor]
    buffer: HostBuffer

    @classmethod
    def of(cls, large: dict[tuple[nn.Parameter, str], Tensor], memory: HostMemory, to_come: int) -> _Home:
        """With room for `large`, which is not copied yet. to_come: bytes of other state that is to follow."""
        buffer = memory.tensors([value.nbytes for value in large.values()], to_come)
        # dense, in the layout of the value where it is dense itself
        tensors = [
            _StateTensor(param, key, start, torch.empty_like(value, device="meta"))
            for ((param, key), value), start in zip(large.items(), buffer.starts, strict=True)
        ]
        return cls(tensors, buffer)

    def show(self, optimizer: torch.optim.Optimizer, buffer: Tensor | HostBuffer) -> list[Tensor]:
        """Lets the state of the optimizer be in `buffer`; returns its tensors."""
        views = [tensor.view(buffer) for tensor in self.tensors]
        for tensor, view in zip(self.tensors, views, strict=True):
            optimizer.state[tensor.param][tensor.key] = view
        return views


def _let_arrive(transfers: Transfers, ahead: dict[int, _Fetched]) -> None:
    """Forgets copies that are not needed; the device waits for them, before their slot can have another use."""
    while ahead:
        _, fetched = ahead.popitem()
        transfers.finish(fetched.copy)


def _is(one: Tensor, other: Tensor) -> bool:
    return one is other
