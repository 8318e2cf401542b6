"""Recognizes the errors of torch and the libraries below it that mean a GPU is out of memory, without torch.

torch's allocator raises OutOfMemoryError. When CUDA, cuDNN, cuBLAS or NCCL fail to allocate memory of their own, other
RuntimeErrors are raised, which can only be recognized by their text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from modules.config.errors import UserError

_SIGNS = (
    "out of memory",  # "CUDA error: out of memory", "Cuda failure 2 'out of memory'" of NCCL
    "CUDNN_STATUS_ALLOC_FAILED",
    "DEVICE_ALLOCATION_FAILED",  # of cuDNN 9: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error means that a GPU is out of memory.

    Leave the `except` block before freeing memory: the traceback keeps the tensors of the failed call alive.
    """
    if type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


@contextlib.contextmanager
def must_fit(what: str, quantized_by: str = "") -> Iterator[None]:
    """Turn an out-of-memory error in the block into a UserError.

    what: the weights being moved to the GPU. quantized_by: the setting that quantizes them, if there is one.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        smaller = f"set {quantized_by} to int8 (for a LoRA or an embedding), " if quantized_by else ""
        raise UserError(
            f"The GPU's memory is too small for {what}: set model.weight_dtype to bfloat16, which takes half of what "
            f"float32 takes, {smaller}or close other programs that use the GPU."
        ) from error
