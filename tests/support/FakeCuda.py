"""The calls of torch.cuda that CudaTransfers makes, on a machine without a GPU: "the device" is the CPU, too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from modules.layers.PinnedMemory import PinnedMemory
from tests.support.LateCopies import LateCopies


class FakeCuda:
    """Work of the computing stream is done at once. A copy is done when that stream, or the host, waits for its event,
    after all that were started before it; until then, its target holds NaN. See LateCopies.

    pinned_bytes: pinned so far, as PyTorch does it: rounded up to powers of two. most_pinned: no more can be pinned,
    and copies from and to other memory are allowed, and done at once; None: no limit.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.most_pinned: int | None = None
        self.pinned_bytes = 0
        self.memory = PinnedMemory()  # not that of the process of the tests
        monkeypatch.setattr("modules.layers.transfers.PINNED", self.memory)
        self._pinned: dict[int, StorageWeakRef] = {}  # by address
        self._registered: set[int] = set()  # addresses of other memory that was pinned
        self.kernels = 0  # launched by the computing stream
        self.late = LateCopies()
        self.streams: list[torch.device] = []  # whose they are
        self.compute = _Compute(self)
        self._empty = torch.empty
        monkeypatch.setattr(torch, "empty", self._pinned_empty)
        monkeypatch.setattr(torch.cuda, "cudart", lambda: self)
        monkeypatch.setattr(torch.cuda, "Stream", self._new_stream)
        monkeypatch.setattr(torch.cuda, "stream", self._on)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.compute)

    @property
    def copies(self) -> int:
        """The number of copies so far."""
        return self.late.num_started

    def counting_kernels(self) -> TorchDispatchMode:
        """A context in which the matrix products of the computing stream are counted."""
        return _Counted(self)

    def is_pinned(self, tensor: Tensor) -> bool:
        address = tensor.untyped_storage().data_ptr()
        memory = self._pinned.get(address)
        # once it has expired, the address has got another use
        return address in self._registered or (memory is not None and not memory.expired())

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:
        if self.most_pinned is not None and self.pinned_bytes + num_bytes > self.most_pinned:
            return 2
        self.pinned_bytes += num_bytes
        self._registered.add(address)
        return 0

    def _new_stream(self, device: torch.device) -> _CopyStream:
        self.streams.append(device)
        return _CopyStream(self)

    def _pinned_empty(self, *args: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        buffer = self._empty(*args, **options)
        if pin_memory:
            num_bytes = 1 << (buffer.nbytes - 1).bit_length()
            if self.most_pinned is not None and self.pinned_bytes + num_bytes > self.most_pinned:
                raise RuntimeError("CUDA error: out of memory")
            self.pinned_bytes += num_bytes
            storage = buffer.untyped_storage()
            self._pinned[storage.data_ptr()] = StorageWeakRef(storage)
        return buffer

    @contextlib.contextmanager
    def _on(self, stream: _CopyStream) -> Iterator[None]:
        # all kernels launched so far may read what the copy overwrites, or write what it reads
        assert stream.waited_for == self.kernels
        with _Deferred(self):
            yield


class _CopyStream:
    def __init__(self, cuda: FakeCuda):
        self._cuda = cuda
        self.waited_for = -1

    def wait_stream(self, other: _Compute) -> None:
        assert other is self._cuda.compute
        self.waited_for = self._cuda.kernels

    def record_event(self) -> int:
        return self._cuda.copies

    def synchronize(self) -> None:
        self._cuda.late.finish(self._cuda.copies)


class _Compute:
    def __init__(self, cuda: FakeCuda):
        self._cuda = cuda

    def wait_event(self, event: int) -> None:
        self._cuda.late.finish(event)


class _Deferred(TorchDispatchMode):
    """Puts copies off, and spoils their targets."""

    def __init__(self, cuda: FakeCuda):
        super().__init__()
        self._cuda = cuda

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Tensor:
        assert function is torch.ops.aten.copy_.default
        target, source, non_blocking = args
        assert non_blocking
        if not (self._cuda.is_pinned(source) or self._cuda.is_pinned(target)):
            assert self._cuda.most_pinned is not None
            self._cuda.late.finish(self._cuda.copies)
            return function(target, source)
        self._cuda.late.start(target, source, from_device=not self._cuda.is_pinned(source))
        return target


class _Counted(TorchDispatchMode):
    def __init__(self, cuda: FakeCuda):
        super().__init__()
        self._cuda = cuda

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._cuda.kernels += function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return function(*args, **(kwargs or {}))
