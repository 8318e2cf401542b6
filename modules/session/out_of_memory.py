"""Which errors say that a GPU's memory is full, for which torch and the libraries below it have several; without torch.

torch's allocator raises OutOfMemoryError; what CUDA, cuDNN, cuBLAS or NCCL want for themselves and don't get ends in
other RuntimeErrors, which can be told by their text alone.
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
    """Whether the error says that a GPU has too little free memory.

    To free it, leave the `except` block first: the traceback holds the tensors of the failed call.
    """
    if type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


@contextlib.contextmanager
def must_fit(what: str) -> Iterator[None]:
    """Inside, an error that says that a GPU's memory is full becomes a UserError. what: the weights that are in use."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            f"The GPU's memory is too small for {what}: set model.weight_dtype to bfloat16, which takes half of what "
            "float32 takes, or close other programs that use the GPU."
        ) from error
