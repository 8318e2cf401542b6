"""The precision that a run computes in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device, mixed_precision: str, keeps_casts: bool = True) -> AbstractContextManager:
    """Autocast to the dtype of a precision in AUTOCAST; nothing for "no".

    keeps_casts: whether a weight that is used again inside is cast once.
    """
    dtype = AUTOCAST.get(mixed_precision)
    return torch.autocast(device.type, dtype, cache_enabled=keeps_casts) if dtype else nullcontext()
