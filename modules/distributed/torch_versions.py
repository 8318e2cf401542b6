"""What differs between the versions of PyTorch that Chorus runs on; pyproject.toml has their range.

Whatever is newer than the oldest of them is asked for here, so that no other file depends on the version.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_FLOAT8_GPUS = (8, 9)  # the oldest compute capability that Triton has float8 (e4m3) for


def without_buffer_broadcasts() -> dict[str, Any]:
    """The argument with which DistributedDataParallel broadcasts no buffers in the forward pass.

    2.13 has renamed it, and warns of the old name. The old one also leaves out the broadcast at the start.
    """
    from torch.nn.parallel import DistributedDataParallel

    arguments = inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in arguments else "broadcast_buffers": False}


def float8_compiler_problem(device: torch.device) -> str:
    """Why layers that are held in float8 can't be compiled for `device`, for the middle of a sentence; "" if they can.

    From 2.13 on, its compiler leaves to other kernels what Triton does not have for a GPU.
    """
    import torch

    if device.type != "cuda" or torch.version.hip or minor_version() >= (2, 13):
        return ""
    capability = torch.cuda.get_device_capability(device)
    if capability >= _FLOAT8_GPUS:
        return ""
    gpu = f"{torch.cuda.get_device_name(device)} (compute capability {capability[0]}.{capability[1]})"
    return f"PyTorch {torch.__version__} compiles no float8 for {gpu}; use int8, install PyTorch 2.13"


def minor_version() -> tuple[int, int]:
    """Of PyTorch: (2, 13)."""
    import torch

    major, minor, *_ = torch.__version__.split(".")
    return int(major), int(minor)
