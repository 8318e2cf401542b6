"""Keeps the buffers of a module the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.nn.functional import pad

if TYPE_CHECKING:
    from torch import Tensor, nn


class SharedBuffers:
    """Keeps the persistent buffers of a module at rank 0's values on all ranks.

    Non-persistent buffers are ignored, because they may hold data of this rank's batch.
    Only buffers that differ between ranks are sent. Ranks compare checksums at the start and after steps 1, 2, 4, 8
    ...; a buffer that differs after a step is sent after every step from then on. Buffers that never change, or change
    identically on all ranks (a step counter, the statistics of synchronized BatchNorm layers), cost next to nothing.

    gather: Runtime.gather.
    """

    def __init__(self, module: nn.Module, gather: Callable[[list[int], str], list[list[int]]]):
        self._gather = gather
        self._buffers = [
            (part, name)
            for part in module.modules()
            for name, buffer in part._buffers.items()
            if buffer is not None and name not in part._non_persistent_buffers_set
        ]
        self._sent: set[int] = set()  # indexes into _buffers
        self._num_steps = 0

    def start(self) -> None:
        """Call before the first step. Buffers that were initialized differently are set to rank 0's values."""
        self._send(self._find_different())

    def after_step(self) -> None:
        """Call after each step, on all ranks."""
        self._num_steps += 1
        if self._num_steps.bit_count() == 1:
            self._sent |= self._find_different()
        self._send(self._sent)

    def _find_different(self) -> set[int]:
        if not self._buffers:
            return set()
        sums = torch.stack([_checksum(part.get_buffer(name)) for part, name in self._buffers]).tolist()
        ranks = self._gather(sums, "comparing buffers")
        return {index for index, values in enumerate(zip(*ranks, strict=True)) if len(set(values)) > 1}

    @torch.no_grad()
    def _send(self, indexes: set[int]) -> None:
        for index in sorted(indexes):
            part, name = self._buffers[index]
            _send_from_first(part.get_buffer(name))


def _checksum(values: Tensor) -> Tensor:
    """The sum of the values' bytes, eight at a time ([], int64): integer, so that every device gets the same result."""
    octets = _octets(values)
    if octets.numel() % 8 or octets.storage_offset() % 8:
        octets = pad(octets, (0, -octets.numel() % 8))
    return octets.view(torch.int64).sum()


def _send_from_first(values: Tensor) -> None:
    octets = _octets(values)  # not every backend supports every dtype
    dist.broadcast(octets, src=0)
    if octets.data_ptr() != values.data_ptr():  # `reshape` had to copy
        values.copy_(octets.view(values.dtype).view_as(values))


def _octets(values: Tensor) -> Tensor:
    return values.detach().reshape(-1).view(torch.uint8)
