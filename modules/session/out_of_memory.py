"""Recognizes the errors that mean that a GPU or the system is out of memory, and says what to do, without torch.

torch's allocator raises OutOfMemoryError for GPUs. When CUDA, cuDNN, cuBLAS or NCCL fail to allocate memory of their
own, other RuntimeErrors are raised, which can only be recognized by their text. A full system shows as a MemoryError, a
RuntimeError of torch's allocator for CPUs, or an OSError or ImportError of a file that can't be mapped.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

from modules.config.errors import UserError

GPU_ADVICE = (
    "The GPU's memory is full: lower batch_size (and raise gradient_accumulation_steps), switch "
    "model.gradient_checkpointing on, lower data.resolution, or train a LoRA with model.weight_dtype bfloat16 and "
    "model.denoiser_quantization int8."
)
SYSTEM_ADVICE = (
    "The system's memory is full: close other programs, lower batch_size, data.resolution or lora.rank, use fewer "
    "ranks on this machine, or choose a smaller model."
)
PINNING_ADVICE = (
    "The system refused to pin memory for batches: pass pin_memory=False to the DataLoader, or close other programs."
)
ADVICE = (GPU_ADVICE, SYSTEM_ADVICE, PINNING_ADVICE)

_SIGNS_OF_SYSTEM = (
    "DefaultCPUAllocator",  # "can't allocate memory", on Windows "not enough memory"
    "Cannot allocate memory",  # errno 12, also in the texts of libraries that map files
    "failed to map segment from shared object",  # of a library being imported
    "std::bad_alloc",
)
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


def is_out_of_system_memory(error: BaseException) -> bool:
    """Whether the error means that the system's memory, or this process's share of it, is used up."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError | OSError | ImportError) and any(
        sign in str(error) for sign in _SIGNS_OF_SYSTEM
    )


def memory_advice(error: BaseException, has_gpu: bool) -> str | None:
    """What to do about an error that means that memory is full; None for another one.

    has_gpu: whether the training runs on a GPU: else it is the system's memory that torch found full.
    """
    if is_out_of_memory(error):
        if _pins_memory(error):
            return PINNING_ADVICE
        return GPU_ADVICE if has_gpu else SYSTEM_ADVICE
    return SYSTEM_ADVICE if is_out_of_system_memory(error) else None


def _pins_memory(error: BaseException) -> bool:
    """Whether a DataLoader raised the error while it pinned a batch, in its own thread or, without workers, in ours."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return "in pin memory thread" in str(error) or any(frame.f_code.co_name == "pin_memory" for frame in frames)


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
