"""Copies between system memory and a device in the background."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

import torch
from torch import Tensor

from modules.layers.PinnedMemory import PINNED
from modules.machine.devices import is_gpu


class Transfers(Protocol):
    """start: begins to copy `source` to `target` once the work submitted so far, which may read `target`, is done.
    finish: lets the work submitted from now on wait for a copy. synchronize: waits on the host for all copies.
    host_buffer: uint8[num_bytes] to copy from or to, best of 2^n bytes: see HostMemory. pin: pins other memory to copy
    from or to, if possible."""

    def start(self, target: Tensor, source: Tensor) -> Any: ...
    def finish(self, copy: Any) -> None: ...
    def synchronize(self) -> None: ...
    def host_buffer(self, num_bytes: int) -> Tensor: ...
    def pin(self, values: Tensor) -> None: ...


class CudaTransfers:
    """Copies on a second stream, from or to pinned memory, so that they overlap with computation.

    Copies from or to memory that could not be pinned wait on the host, in the same order.

    Neither stream waits on the host: the copy waits for an event of the computing stream and the reverse. Tensors on
    the device must live until their copy is done: the allocator is not told of their use by the second stream, as
    `record_stream` would.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def start(self, target: Tensor, source: Tensor) -> torch.cuda.Event:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        return self._stream.record_event()

    def finish(self, copy: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self._device).wait_event(copy)

    def synchronize(self) -> None:
        self._stream.synchronize()

    def host_buffer(self, num_bytes: int) -> Tensor:
        return PINNED.empty(num_bytes)

    def pin(self, values: Tensor) -> None:
        if not PINNED.register(values):
            # CUDA hands the error on to whatever asks for one next, which would be a kernel of a step.
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=self._device)


class DirectTransfers:
    """Copies at once, for devices without streams."""

    def start(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source)

    def finish(self, copy: None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def host_buffer(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def pin(self, values: Tensor) -> None:
        pass


def transfers_to(device: torch.device) -> Transfers:
    return CudaTransfers(device) if is_gpu(device) else DirectTransfers()
