"""Handles running out of device memory, and frees unused GPU memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from modules.machine.devices import is_gpu
from modules.session.out_of_memory import is_out_of_memory, is_out_of_system_memory

if TYPE_CHECKING:
    import torch


def fits_in_memory(run: Callable[[], None], device: torch.device) -> bool:
    """Runs `run` and returns whether it fit in memory. If not, the memory of the failed call is freed."""
    try:
        run()
    except (RuntimeError, MemoryError) as error:
        if not (is_out_of_memory(error) or is_out_of_system_memory(error)):
            raise
    else:
        return True
    free_memory(device)  # outside of `except`, where the traceback keeps the tensors alive
    return False


def free_bytes(device: torch.device) -> int | None:
    """The memory that no process uses on a GPU; None for other devices."""
    if not is_gpu(device):
        return None
    import torch

    return torch.cuda.mem_get_info(device)[0]


def free_memory(device: torch.device) -> None:
    """Releases the memory that torch has cached on the device; can be called from any thread."""
    if not is_gpu(device):
        return
    import torch

    # The current device is per thread and starts as GPU 0, where `empty_cache` would create a context: half a GB on
    # GPU 0 for every rank (https://github.com/pytorch/pytorch/issues/25752).
    with torch.cuda.device(device):
        torch.cuda.empty_cache()
