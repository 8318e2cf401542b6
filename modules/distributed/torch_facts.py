"""Reports facts about PyTorch and the GPUs from a separate process, so that a broken installation harms nothing else.

    python -m modules.distributed.torch_facts

The last line of stdout is JSON, and the exit code 0:

    {"version": "2.13.0+cu130", "file": ".../torch/__init__.py", "cuda": "13.0", "nccl": "2.27.7", "cudnn": "9.19.0",
     "has_gloo": true, "has_nccl": true, "reason": "",
     "devices": [{"name": "NVIDIA A100-SXM4-80GB", "capability": "8.0", "attention": "flash", "error": ""}, ...]}

cuda: the version that PyTorch was built for, or null. nccl, cudnn: their versions, or null. reason: why PyTorch can't
use CUDA; empty if it can, or was built without. devices: in CUDA's order; attention: the backend that PyTorch chooses
by itself for an attention with gradients, or empty; error: why a small sum on the device failed, or empty.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

from modules.config.errors import first_line


def main() -> int:
    print(json.dumps(read_facts()))
    return 0


def read_facts() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    reason = no_cuda_reason()
    can_use = torch.version.cuda is not None and not reason
    has_nccl = dist.is_available() and dist.is_nccl_available()
    return {
        "version": torch.__version__,
        "file": torch.__file__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else None,
        "cudnn": cudnn_version(),
        "has_gloo": dist.is_available() and dist.is_gloo_available(),
        "has_nccl": has_nccl,
        "reason": reason,
        "devices": [_try_device(index) for index in range(torch.cuda.device_count())] if can_use else [],
    }


def cudnn_version() -> str | None:
    """That of cuDNN 9 and newer; None without cuDNN."""
    import torch

    number = torch.backends.cudnn.version()  # 91900 for 9.19.0
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}" if number else None


def no_cuda_reason() -> str:
    """Why torch can't use CUDA; "" if it can, or was built without."""
    import torch

    if torch.version.cuda is None:
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `init` raises what `is_available` warns about
        if torch.cuda.is_available():
            return ""
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            return first_line(error)
    return "CUDA finds no device"


def _try_device(index: int) -> dict[str, str]:
    """Computes a small sum, which needs memory, a kernel for this GPU and a correct result."""
    import torch

    error = attention = ""
    try:
        if torch.ones(8, device=f"cuda:{index}").sum().item() != 8:
            error = "it computes a wrong sum"
        attention = _chosen_attention(index)
    except RuntimeError as failure:
        error = error or first_line(failure)
    major, minor = torch.cuda.get_device_capability(index)
    name, capability = torch.cuda.get_device_name(index), f"{major}.{minor}"
    return {"name": name, "capability": capability, "attention": attention, "error": error}


def _chosen_attention(index: int) -> str:
    """The backend that torch chooses there: "cudnn", "flash", "efficient" or "math"."""
    import torch
    from torch.nn.attention import SDPBackend

    query = torch.ones(1, 2, 256, 64, dtype=torch.bfloat16, device=f"cuda:{index}", requires_grad=True)
    chosen = torch._fused_sdp_choice(query, query, query)
    return SDPBackend(chosen).name.partition("_")[0].lower()


if __name__ == "__main__":
    sys.exit(main())
