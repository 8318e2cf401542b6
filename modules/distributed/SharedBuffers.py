"""Buffers of a module that training changes, the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.nn.functional import pad

if TYPE_CHECKING:
    from torch import Tensor, nn


class SharedBuffers:
    """Keeps the buffers of a module at rank 0's values on all ranks.

    Only buffers in the module's state dict: the others are scratch, and may belong to this rank's batch.
    Only what differs between ranks is sent. Ranks compare checksums at the start and after steps 1, 2, 4, 8 ...; a
    buffer that differed after a step is sent after every step from then on. A buffer that never changes, or that all
    ranks change alike (a step counter, the statistics of synchronized BatchNorm layers), costs next to nothing.

    gather: as Runtime.gather.
    """

    def __init__(self, module: nn.Module, gather: Callable[[list[int], str], list[list[int]]]):
        self._gather = gather
        self._places = [
            (part, name)
            for part in module.modules()
            for name, buffer in part._buffers.items()
            if buffer is not None and name not in part._non_persistent_buffers_set
        ]
        self._sent: set[int] = set()  # positions in _places
        self._num_steps = 0

    def start(self) -> None:
        """Before the first step: buffers that ranks have initialized differently become rank 0's."""
        self._send(self._find_different())

    def after_step(self) -> None:
        """After each step, on all ranks."""
        self._num_steps += 1
        if self._num_steps.bit_count() == 1:
            self._sent |= self._find_different()
        self._send(self._sent)

    def _find_different(self) -> set[int]:
        if not self._places:
            return set()
        sums = torch.stack([_checksum(part._buffers[name]) for part, name in self._places]).tolist()
        ranks = self._gather(sums, "comparing buffers")
        return {place for place, values in enumerate(zip(*ranks, strict=True)) if len(set(values)) > 1}

    @torch.no_grad()
    def _send(self, places: set[int]) -> None:
        for place in sorted(places):
            part, name = self._places[place]
            _send_from_first(part._buffers[name])


def _checksum(values: Tensor) -> Tensor:
    """[], int64: the sum of the values' bytes, eight at a time. Integers, so that every device gets the same sum."""
    octets = _octets(values)
    if octets.numel() % 8 or octets.storage_offset() % 8:
        octets = pad(octets, (0, -octets.numel() % 8))
    return octets.view(torch.int64).sum()


def _send_from_first(values: Tensor) -> None:
    octets = _octets(values)  # not every backend knows every dtype
    dist.broadcast(octets, src=0)
    if octets.data_ptr() != values.data_ptr():  # a copy, where the layout has left no other way
        values.copy_(octets.view(values.dtype).view_as(values))


def _octets(values: Tensor) -> Tensor:
    return values.detach().reshape(-1).view(torch.uint8)
