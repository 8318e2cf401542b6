"""torch's allocator of GPU memory, set up for batches of many shapes."""

from __future__ import annotations

import os
import platform
import sys
from typing import TYPE_CHECKING

from modules.session.out_of_memory import is_out_of_memory

if TYPE_CHECKING:
    import torch

# In each of these people say by themselves how memory is allocated.
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
ON, OFF = "expandable_segments:True", "expandable_segments:False"


def enable_expandable_segments(device: torch.device) -> None:
    """Lets the allocator extend what it has from the driver, so that buckets of other shapes leave no gaps in it.

    Only where it works, which is tried: not on Windows, WSL and ROCm, nor on virtual GPUs that were not given the
    driver's functions for it. To be called before anything is on the device. What the environment says of the
    allocator stays.
    """
    import torch

    in_wsl = "microsoft" in platform.release().lower()
    can_grow = sys.platform == "linux" and not in_wsl and not torch.version.hip
    if not can_grow or any(os.environ.get(name) for name in VARIABLES):
        return
    # at run time, for by PYTORCH_ALLOC_CONF there is no way back where it does not work
    torch._C._accelerator_setAllocatorSettings(ON)
    try:
        torch.empty(1, device=device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            torch._C._accelerator_setAllocatorSettings(OFF)
