"""All errors by which torch and CUDA's libraries report a full GPU are recognized."""

from __future__ import annotations

import pytest
import torch

from modules.config.errors import UserError
from modules.session.out_of_memory import is_out_of_memory, must_fit

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
