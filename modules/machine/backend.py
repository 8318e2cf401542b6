"""Choose the backend that the ranks of a run communicate with."""

from __future__ import annotations

import sys
from typing import Literal

Backend = Literal["nccl", "gloo"]


def sharding_needs_nccl(strategy: str) -> str:
    """The problem of GPUs that use gloo with a distributed_strategy that shards."""
    return (
        f"distributed_strategy {strategy}: GPUs can only share a model with NCCL, and the ranks here use gloo; set "
        "distributed_backend to nccl where PyTorch has it, or distributed_strategy to ddp."
    )


def choose_backend(wanted: str, has_gpu: bool, has_nccl: bool = sys.platform != "win32") -> tuple[Backend, str]:
    """The backend that distributed_backend `wanted` selects on a machine, and the reason as a clause.

    NCCL if it is chosen, or allowed by auto, and available; else Gloo.
    has_gpu: whether there is an NVIDIA GPU. has_nccl: whether PyTorch has NCCL; without torch the platform decides.
    """
    if wanted == "gloo":
        return "gloo", "it is chosen"
    if not has_gpu:
        return "gloo", "there is no NVIDIA GPU here"
    if not has_nccl:
        return "gloo", "PyTorch has no NCCL here"
    return "nccl", "there are NVIDIA GPUs"


def backend_warning(wanted: str, backend: Backend, reason: str) -> str:
    """A warning if NCCL was chosen but Gloo is used; "" otherwise. backend, reason: as `choose_backend` gives them."""
    if wanted == "auto" or backend == wanted:
        return ""
    return f"distributed_backend {wanted}: {reason}, so the ranks use {backend}; set it to auto or gloo."
