"""Frozen weights of blocks in system memory, from which a device copies them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from modules.layers.HostMemory import HostBuffer, HostMemory
from modules.layers.SharedSlabs import SharedSlabs
from modules.layers.transfers import Transfers


class HostBlocks:
    """Moves the frozen weights of blocks to buffers in system memory.

    homes: those of the blocks, in the order in which they came. shared: slabs that other ranks have as well, with the
    same weights.
    """

    def __init__(self, transfers: Transfers, shared: SharedSlabs | None = None):
        self._shared = shared
        self._memory = HostMemory(shared.slab if shared else transfers.host_buffer)
        self.homes: list[Home] = []

    @property
    def num_bytes(self) -> int:
        """Of the memory that holds them."""
        return self._memory.num_bytes

    @property
    def is_shared(self) -> bool:
        return self._shared is not None and self._shared.is_shared

    def take(self, blocks: Iterable[nn.Module], sizes: Sequence[int]) -> None:
        """Moves blocks one after the other: each is asked for when the one before it has been moved.

        sizes: bytes of the frozen weights of all of them, which may be others when a block comes: those that follow it
        are taken to shrink likewise.
        """
        for number, block in enumerate(blocks):
            to_come = sum(sizes[number + 1 :]) * frozen_bytes(block) // max(1, sizes[number])
            self.homes.append(self._home(block, to_come))
        if self._shared:
            self._shared.end()

    def _home(self, block: nn.Module, to_come: int) -> Home:
        """to_come: bytes of the blocks that follow."""
        frozen = [parameter for parameter in block.parameters() if not parameter.requires_grad]
        for parameter in frozen:
            parameter.data = _dense(parameter.data)
        room = self._memory.tensors([parameter.nbytes for parameter in frozen], to_come)
        starts = room.starts[: len(frozen)]
        weights = [
            HostWeight(each, start, each.nbytes, each.stride()) for each, start in zip(frozen, starts, strict=True)
        ]
        home = Home(weights, room)
        if self._shared is None or self._shared.fills:
            for weight in weights:
                weight.view(room).copy_(weight.parameter.data)
        home.leave()
        return home


@dataclass
class HostWeight:
    """A weight in a buffer of bytes."""

    parameter: nn.Parameter
    start: int
    num_bytes: int
    stride: tuple[int, ...]

    def view(self, buffer: Tensor | HostBuffer) -> Tensor:
        values = buffer[self.start : self.start + self.num_bytes].view(self.parameter.dtype)
        return values.as_strided(self.parameter.shape, self.stride, values.storage_offset())


@dataclass
class Home:
    """The frozen weights of a block in system memory."""

    weights: list[HostWeight]
    buffer: HostBuffer

    def leave_out_trained(self) -> None:
        """Forgets weights that train, though they did not when they came here."""
        self.weights = [weight for weight in self.weights if not weight.parameter.requires_grad]

    def enter(self, slot: Tensor) -> None:
        for weight in self.weights:
            weight.parameter.data = weight.view(slot)

    def leave(self) -> None:
        """Lets the weights be those in system memory: to use them on the device, or to have kept them, is an error."""
        for weight in self.weights:
            weight.parameter.data = weight.view(self.buffer)
            torch.autograd.graph.increment_version(weight.parameter)


def frozen_bytes(block: nn.Module) -> int:
    """Of the weights that don't train."""
    return sum(parameter.nbytes for parameter in block.parameters() if not parameter.requires_grad)


def _dense(values: Tensor) -> Tensor:
    """The tensor, or a contiguous copy of one whose elements are not side by side in memory."""
    return values if torch.ops.aten.is_non_overlapping_and_dense(values) else values.contiguous()
