"""Memory that the system refuses to pin is replaced by ordinary memory, and said once."""

from __future__ import annotations

import pytest
import torch

from modules.data.Batch import Batch
from modules.layers import PinnedMemory as module
from modules.layers.PinnedMemory import PinnedMemory
from modules.trainer.MemoryReading import MemoryReading
from tests.support.Recorder import Recorder

REFUSAL = "CUDA error: out of memory"  # of cudaHostAlloc, as torch reports it


@pytest.fixture
def memory(monkeypatch) -> PinnedMemory:
    """That of this process, anew, where a pinned tensor of more than 1000 bytes is refused."""
    monkeypatch.setattr(module, "PINNED", PinnedMemory())
    monkeypatch.setattr("modules.trainer.MemoryReading.PINNED", module.PINNED)
    own = torch.empty

    def empty(*args, pin_memory=False, **options):
        result = own(*args, **options)
        if pin_memory and result.nbytes > 1000:
            raise RuntimeError(REFUSAL)
        return result

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: empty(tensor.shape, pin_memory=True).copy_(tensor))
    return module.PINNED


def test_smaller_memory_is_still_pinned_and_none_of_the_refused_size_is_asked_for_again(memory):
    assert memory.empty(900).nbytes == 900
    assert memory.empty(2000).nbytes == 2000
    assert (memory.num_bytes, memory.refused_bytes) == (900, 2000)
    assert memory.pinned(lambda: pytest.fail("asked again"), 2000) is None
    assert memory.empty(1000).nbytes == 1000
    assert memory.num_bytes == 1900


def test_a_batch_that_cannot_be_pinned_is_used_as_it_is(memory):
    small, large = torch.ones(10), torch.arange(1000.0)
    pinned = Batch(weight=small, count=1, noise=small, u=small, prompts=[""], given={"references": [large]}).pinned()
    assert pinned.weight is not small
    assert pinned.given["references"][0] is large


def test_another_error_is_raised(memory):
    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        memory.pinned(fail, 1)


def test_a_refusal_is_one_warning_that_does_not_blame_the_gpu(memory):
    recorder = Recorder()
    reading = MemoryReading(torch.device("cpu"), recorder)
    reading.read()
    assert not recorder.warnings
    for size in (2000, 1500):
        memory.empty(size)
        reading.read()
    (warning,) = recorder.warnings
    assert "refused to pin" in warning
    assert "batch_size" not in warning
