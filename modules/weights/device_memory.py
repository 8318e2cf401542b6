"""The memory of a device: what to do where it is too small, and how to give a GPU's back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from modules.session.out_of_memory import is_out_of_memory

if TYPE_CHECKING:
    import torch


def fits_in_memory(run: Callable[[], None], device: torch.device) -> bool:
    """Runs `run`; whether the device's memory was large enough. If not, what the failed call held is free again."""
    try:
        run()
    except (RuntimeError, MemoryError) as error:
        if not (is_out_of_memory(error) or _is_out_of_cpu_memory(error)):
            raise
    else:
        return True
    free_memory(device)  # not in the `except` block, in which the traceback still holds the tensors
    return False


def _is_out_of_cpu_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)  # a plain RuntimeError of torch


def free_memory(device: torch.device) -> None:
    """Gives the memory that torch keeps for later back to the device, from any thread."""
    if device.type != "cuda":
        return
    import torch

    # Each thread has a current device of its own, GPU 0 at first, and `empty_cache` makes a context there: on GPU 0
    # half a GB for every rank (https://github.com/pytorch/pytorch/issues/25752).
    with torch.cuda.device(device):
        torch.cuda.empty_cache()
