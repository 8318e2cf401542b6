"""Block swapping: blocks whose frozen weights stay in system memory and are copied to the device when they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from modules.layers.HostBlocks import HostBlocks, frozen_bytes
from modules.layers.transfers import Transfers

NUM_SLOTS = 2  # one for the block that runs, one for the block that is copied meanwhile


class BlockSwap:
    """Copies the frozen weights of `blocks` to `device` before each of their forward passes.

    The device has room for two of them: while one runs, the one that is expected next is copied. The copies in system
    memory are final, because these weights don't change, so that nothing is ever copied back. Weights that train, and
    buffers, stay on the device.

    It requires gradient checkpointing of each block, without reentrant autograd: the backward pass then runs the block
    forward again, which copies its weights again, and keeps none of them beyond that block. A pass that did keep one is
    stopped by autograd, because leaving the device counts as a change of the weight.

    compiled: whether torch.compile is to compile the blocks. It then leaves the copies out of what it compiles.
    held: the frozen weights of all blocks, if they are in system memory already. host_bytes: of that memory.
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        device: torch.device,
        transfers: Transfers,
        compiled: bool = False,
        held: HostBlocks | None = None,
    ):
        self._transfers = transfers
        if held is None:
            held = HostBlocks(transfers)
            held.take(blocks, list(map(frozen_bytes, blocks)))
        for block in blocks:
            _move_others(block, device)
        self._held = held  # and with it the memory, which ranks that load later have yet to open
        self._homes = held.homes
        for home in self._homes:
            home.leave_out_trained()
        self.host_bytes = held.num_bytes
        size = max(home.buffer.num_bytes for home in self._homes)
        slots = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(min(NUM_SLOTS, len(blocks)))]
        self._free = slots
        self._slots: dict[int, Tensor] = {}  # block number -> its slot, the least recently used first
        self._pending: dict[int, Any] = {}  # block number -> a copy that no computation waits for yet
        self._last = self._before = -1
        self._followers: dict[tuple[int, int], int] = {}  # (block, next block) -> the block that came after them
        for number, block in enumerate(blocks):
            self._enter_before(block, number, compiled)

    def _enter_before(self, block: nn.Module, number: int, compiled: bool) -> None:
        def hook(module: nn.Module, inputs: Any) -> None:
            self._enter(number)

        # the compiler, which takes seconds to import, would record the copies of one step and repeat those
        block.register_forward_pre_hook(torch.compiler.disable(hook) if compiled else hook, prepend=True)

    @property
    def on_device(self) -> list[int]:
        """The numbers of the blocks whose weights are on the device, or on their way."""
        return list(self._slots)

    def _enter(self, number: int) -> None:
        """Called before a forward pass of block `number`."""
        self._followers[self._before, self._last] = number
        self._before, self._last = self._last, number
        self._fetch(number)
        if number in self._pending:
            self._transfers.finish(self._pending.pop(number))
        # a step repeats its order of blocks: forth, back for the gradients, and again
        expected = self._followers.get((self._before, number), number)
        if len(self._homes) > 1:
            self._fetch(expected)
            self._slots[number] = self._slots.pop(number)  # the most recently used

    def _fetch(self, number: int) -> None:
        """Starts to copy the block, unless it is on the device."""
        if number in self._slots:
            self._slots[number] = self._slots.pop(number)
            return
        if not self._free:
            oldest = next(iter(self._slots))
            self._free.append(self._slots.pop(oldest))
            if oldest in self._pending:  # never used; its copy must not be overtaken
                self._transfers.finish(self._pending.pop(oldest))
            self._homes[oldest].leave()
        slot = self._slots[number] = self._free.pop()
        home = self._homes[number]
        self._pending[number] = home.buffer.copy_to(slot, self._transfers)
        home.enter(slot)


def _move_others(block: nn.Module, device: torch.device) -> None:
    """Moves all but the frozen weights."""
    for parameter in block.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(device)
    for buffer in block.buffers():
        buffer.data = buffer.data.to(device)
