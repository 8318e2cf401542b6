"""Configures torch's CUDA memory allocator for batches of many shapes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from modules.machine.wsl import in_wsl
from modules.session.out_of_memory import is_out_of_memory

if TYPE_CHECKING:
    import torch

# Users configure the allocator with these.
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
ON, OFF = "expandable_segments:True", "expandable_segments:False"


def enable_expandable_segments(device: torch.device) -> None:
    """Enables expandable segments, which avoid fragmentation by buckets of different shapes.

    Does nothing on Windows, WSL and ROCm, if the environment configures the allocator, or if a trial allocation fails,
    as on virtual GPUs without the necessary driver functions. Call it before anything is allocated on the device.
    """
    import torch

    can_grow = sys.platform == "linux" and not in_wsl() and not torch.version.hip
    if not can_grow or any(os.environ.get(name) for name in VARIABLES):
        return
    # at run time, because a setting in PYTORCH_ALLOC_CONF could not be undone if the trial fails
    torch._C._accelerator_setAllocatorSettings(ON)
    try:
        torch.empty(1, device=device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            torch._C._accelerator_setAllocatorSettings(OFF)
