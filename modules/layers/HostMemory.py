"""System memory that a device copies from and to, in slabs of 2^n bytes.

PyTorch rounds what it pins up to a power of two (CachingHostAllocator.h), so that memory pinned tensor by tensor takes
up to twice the size of the tensors.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from modules.layers.transfers import Transfers

ALIGNMENT = 512  # bytes between the starts of two tensors, as of CUDA's allocator
SLAB_BYTES = 2**29  # of a usual slab
MOST_SLAB_BYTES = 2**32  # of one that has large tensors
LEAST_SLAB_BYTES = 2**20
SPLIT_SLAB_BYTES = 2**26  # the least for bytes that can be split anywhere, so that no more than this is unused
_TENSORS_PER_SLAB = 16  # of the largest size: what is left over at the end of a slab is then a few per cent
_MOST_PIECES = 32  # of a buffer; each is a copy of its own, whose launch takes longer than that of a few KB


class HostMemory:
    """Cuts buffers from slabs; the room of a buffer that nothing refers to any more is used again.

    All copies from and to its buffers must be ordered, as on one stream: room may be used again while a copy of the
    buffer before it is waiting.

    new_slab: allocates uint8[num_bytes].
    """

    def __init__(self, new_slab: Callable[[int], Tensor]):
        self._new_slab = new_slab
        self._slabs: list[Tensor] = []
        self._free: list[_Range] = []  # in order, and apart from each other
        self._returned: deque[list[_Range]] = deque()  # by whatever thread dropped the last reference to a buffer

    @property
    def num_bytes(self) -> int:
        """Of all slabs."""
        return sum(slab.numel() for slab in self._slabs)

    def tensors(self, sizes: Sequence[int], to_come: int = 0) -> HostBuffer:
        """Room for tensors of these sizes in bytes, each in one piece. to_come: bytes that are expected to follow."""
        self._take_back()
        sizes = [aligned(size) for size in sizes or [0]]
        left = sorted(range(len(sizes)), key=lambda number: -sizes[number])
        ranges, starts, place = [], [0] * len(sizes), 0
        least = sum(sizes) // _MOST_PIECES
        free = iter([*self._free])
        while left:
            room = next(free, None)
            is_new = room is None
            room = room or self._add_slab(slab_bytes(sizes[left[0]], _sum(sizes, left) + to_come))
            fitting = _fitting(sizes, left, room.num_bytes)
            taken = _sum(sizes, fitting)
            if not fitting or not (is_new or taken >= least or fitting == left):
                continue
            for number in fitting:
                starts[number] = place
                place += sizes[number]
            left = [number for number in left if number not in fitting]
            ranges.append(self._cut(room, taken))
        return self._buffer(ranges, starts)

    def split(self, num_bytes: int) -> HostBuffer:
        """Room for bytes that can be split anywhere."""
        self._take_back()
        ranges, left = [], aligned(num_bytes)
        free = iter([*self._free])
        while left:
            size = min(SLAB_BYTES, max(SPLIT_SLAB_BYTES, 1 << (left.bit_length() - 1)))
            room = next(free, None) or self._add_slab(size)
            ranges.append(self._cut(room, min(left, room.num_bytes)))
            left -= ranges[-1].num_bytes
        return self._buffer(ranges, [0])

    def _buffer(self, ranges: list[_Range], starts: list[int]) -> HostBuffer:
        buffer = HostBuffer([self._slabs[one.slab][one.start : one.end] for one in ranges], starts)
        weakref.finalize(buffer, self._returned.append, ranges).atexit = False
        return buffer

    def _add_slab(self, num_bytes: int) -> _Range:
        self._slabs.append(self._new_slab(num_bytes))
        room = _Range(len(self._slabs) - 1, 0, num_bytes)
        self._free.append(room)
        return room

    def _cut(self, room: _Range, num_bytes: int) -> _Range:
        """The beginning of free room, which is free no more."""
        place = self._free.index(room)
        rest = _Range(room.slab, room.start + num_bytes, room.end)
        self._free[place : place + 1] = [rest] if rest.num_bytes else []
        return _Range(room.slab, room.start, rest.start)

    def _take_back(self) -> None:
        while self._returned:
            self._free += self._returned.popleft()
        joined: list[_Range] = []
        for room in sorted(self._free):
            if joined and (joined[-1].slab, joined[-1].end) == (room.slab, room.start):
                room = _Range(room.slab, joined.pop().start, room.end)
            joined.append(room)
        self._free = joined


class HostBuffer:
    """Bytes in system memory, in a few pieces.

    starts: where each tensor begins, counted through all pieces. num_bytes: of all pieces.
    """

    def __init__(self, pieces: list[Tensor], starts: list[int]):
        self._pieces = pieces
        self.starts = starts
        self.num_bytes = sum(piece.numel() for piece in pieces)

    def __getitem__(self, wanted: slice) -> Tensor:
        """Bytes that are in one piece, such as those of a tensor."""
        start, end = wanted.start, wanted.stop
        for piece in self._pieces:
            if start < piece.numel():
                assert end <= piece.numel()
                return piece[start:end]
            start, end = start - piece.numel(), end - piece.numel()
        raise IndexError(wanted)

    def copy_to(self, target: Tensor, transfers: Transfers) -> Any:
        """Starts to copy the buffer to `target` (uint8); returns the last copy, which ends after all others."""
        copy, start = None, 0
        for piece in self._pieces:
            part = target[start : start + piece.numel()]
            copy = transfers.start(part, piece[: part.numel()])
            start += piece.numel()
        return copy

    def copy_from(self, source: Tensor, transfers: Transfers) -> Any:
        """Starts to copy `source` (uint8) to the buffer; returns the last copy, which ends after all others."""
        copy, start = None, 0
        for piece in self._pieces:
            part = source[start : start + piece.numel()]
            copy = transfers.start(piece[: part.numel()], part)
            start += piece.numel()
        return copy


def aligned(num_bytes: int) -> int:
    """`num_bytes` rounded up to the alignment."""
    return max(1, -(-num_bytes // ALIGNMENT)) * ALIGNMENT


def slab_bytes(largest: int, left: int) -> int:
    """The size of the next slab, a power of two. largest: of the tensors. left: bytes of all that have no room yet."""
    usual = min(MOST_SLAB_BYTES, max(SLAB_BYTES, _power_of_two(_TENSORS_PER_SLAB * largest)))
    if left >= usual:
        return max(usual, _power_of_two(largest))
    whole = _one_slab(largest, left)
    return whole // 2 if _least_total(largest, left) < whole else whole


def _one_slab(largest: int, left: int) -> int:
    return max(LEAST_SLAB_BYTES, _power_of_two(max(largest, left)))


def _least_total(largest: int, left: int) -> int:
    """Bytes of the slabs that hold `left` bytes in tensors of the size `largest`: one, or one of half its size and more
    for what does not fit in there."""
    whole = _one_slab(largest, left)
    half = whole // 2
    if half < max(largest, LEAST_SLAB_BYTES):
        return whole
    return min(whole, half + _least_total(largest, left - half // largest * largest))


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _sum(sizes: Sequence[int], numbers: Sequence[int]) -> int:
    return sum(sizes[number] for number in numbers)


def _fitting(sizes: Sequence[int], numbers: Sequence[int], room: int) -> list[int]:
    """The first of `numbers` whose sizes fit together."""
    found = []
    for number in numbers:
        if sizes[number] <= room:
            found.append(number)
            room -= sizes[number]
    return found


@dataclass(frozen=True, order=True)
class _Range:
    """Bytes of a slab."""

    slab: int
    start: int
    end: int

    @property
    def num_bytes(self) -> int:
        return self.end - self.start
