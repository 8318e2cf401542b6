"""All errors by which torch and CUDA's libraries report a full GPU are recognized."""

from __future__ import annotations

import pytest
import torch
from torch._utils import ExceptionWrapper

from modules.config.errors import UserError
from modules.session.out_of_memory import (
    GPU_ADVICE,
    PINNING_ADVICE,
    SYSTEM_ADVICE,
    is_out_of_memory,
    is_out_of_system_memory,
    memory_advice,
    must_fit,
)

FULL = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.6 GiB."),
    torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported."),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    torch.distributed.DistBackendError(
        "NCCL error in: NCCLUtils.cpp:77, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version "
        "2.27.7\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"
    ),
]
OTHER = [
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    OSError(28, "No space left on device"),
    MemoryError("of the computer"),
    ValueError("the prompt 'out of memory' is too long"),
]


@pytest.mark.parametrize(("error", "is_full"), [(e, True) for e in FULL] + [(e, False) for e in OTHER], ids=repr)
def test_errors_for_a_full_gpu_are_told_from_others(error, is_full):
    assert is_out_of_memory(error) is is_full
    with pytest.raises(UserError if is_full else type(error)), must_fit("the model"):
        raise error


FULL_SYSTEM = [
    MemoryError("of the computer"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried to"),
    RuntimeError("unable to mmap 1234 bytes from file <a.safetensors>: Cannot allocate memory (12)"),
    OSError(12, "Cannot allocate memory"),
    ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    ImportError("libcudnn.so: cannot open shared object file: Cannot allocate memory"),
]


@pytest.mark.parametrize("error", FULL_SYSTEM, ids=repr)
def test_errors_for_full_system_memory_advise_nothing_about_a_gpu(error):
    assert is_out_of_system_memory(error)
    for has_gpu in (False, True):
        assert memory_advice(error, has_gpu) == SYSTEM_ADVICE
    assert "GPU" not in SYSTEM_ADVICE


def test_the_gpu_is_named_only_where_there_is_one():
    assert {memory_advice(error, has_gpu=True) for error in FULL} == {GPU_ADVICE}
    assert {memory_advice(error, has_gpu=False) for error in FULL} == {SYSTEM_ADVICE}
    others = [error for error in OTHER if not isinstance(error, MemoryError)]
    assert {memory_advice(error, has_gpu=True) for error in others} == {None}


def test_a_loader_that_cannot_pin_its_batches_does_not_blame_the_gpu(monkeypatch):
    def refuse(tensor, device=None):
        raise RuntimeError("CUDA error: out of memory")

    # on a machine without a GPU, a DataLoader pins nothing by itself
    monkeypatch.setattr(torch.accelerator, "is_available", lambda *args, **options: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", refuse)
    loader = torch.utils.data.DataLoader(torch.ones(2), pin_memory=True)
    with pytest.raises(RuntimeError, match="out of memory") as alone:
        next(iter(loader))
    with pytest.raises(RuntimeError, match="out of memory") as with_workers:  # as its thread passes the error on
        ExceptionWrapper((alone.type, alone.value, None), where="in pin memory thread for device 0").reraise()
    for caught in (alone, with_workers):
        assert memory_advice(caught.value, has_gpu=True) == PINNING_ADVICE
    assert "pin_memory=False" in PINNING_ADVICE
