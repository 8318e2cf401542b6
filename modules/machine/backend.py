"""Which backend the ranks of a run exchange gradients with."""

from __future__ import annotations

import sys
from typing import Literal

Backend = Literal["nccl", "gloo"]


def choose_backend(wanted: str, has_gpu: bool, has_nccl: bool = sys.platform != "win32") -> tuple[Backend, str]:
    """What distributed_backend `wanted` means on a machine, and why: a clause for people.

    NCCL where it is wanted, or left open by auto, and can be had; else Gloo.
    has_gpu: whether there is an NVIDIA GPU. has_nccl: whether PyTorch has NCCL; without torch it is told by the system.
    """
    if wanted == "gloo":
        return "gloo", "it is chosen"
    if not has_gpu:
        return "gloo", "there is no NVIDIA GPU here"
    if not has_nccl:
        return "gloo", "PyTorch has no NCCL here"
    return "nccl", "there are NVIDIA GPUs"


def backend_warning(wanted: str, has_gpu: bool, has_nccl: bool = sys.platform != "win32") -> str:
    """The sentence for ranks that asked for NCCL and get Gloo; "" where they get what they asked for."""
    backend, reason = choose_backend(wanted, has_gpu, has_nccl)
    if wanted == "auto" or backend == wanted:
        return ""
    return f"distributed_backend {wanted}: {reason}, so the ranks use {backend}; set it to auto or gloo."
