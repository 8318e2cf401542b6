"""A GPU is copied to and from in the background, and every other device at once."""

from __future__ import annotations

import torch

from modules.layers.transfers import CudaTransfers, DirectTransfers, transfers_to
from tests.support.FakeCuda import FakeCuda


def test_a_gpu_gets_a_stream_of_its_own_and_pinned_memory(monkeypatch):
    cuda = FakeCuda(monkeypatch)
    transfers = transfers_to(torch.device("cuda", 1))
    assert isinstance(transfers, CudaTransfers)
    assert cuda.streams == [torch.device("cuda", 1)]
    assert cuda.is_pinned(transfers.host_buffer(8))


def test_the_cpu_has_neither():
    assert isinstance(transfers_to(torch.device("cpu")), DirectTransfers)
