"""Pinned system memory, from and to which a GPU copies by itself, and ordinary memory where the system refuses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

# What cudaHostAlloc fails with is also what a full GPU gives: "CUDA error: out of memory".
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every context of the process
_SIGNS_OF_REFUSAL = ("out of memory", "OS call failed", "operation not supported")


class PinnedMemory:
    """Pins memory until the system refuses it: copies from and to memory that is not pinned wait, but are the same.

    num_bytes: pinned so far by `empty` and `register`. refused_bytes: the smallest size that was refused; None as long
    as none was.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self.refused_bytes: int | None = None

    def empty(self, num_bytes: int) -> Tensor:
        """uint8[num_bytes], pinned if possible. PyTorch rounds its size up to a power of two."""
        make = torch.empty
        values = self.pinned(lambda: make(num_bytes, dtype=torch.uint8, pin_memory=True), num_bytes)
        if values is None:
            return make(num_bytes, dtype=torch.uint8)
        self.num_bytes += num_bytes
        return values

    def register(self, values: Tensor) -> bool:
        """Pins memory that is there already, until the process ends; returns whether the system allows it."""
        if self.refused_bytes is not None and values.nbytes >= self.refused_bytes:
            return False
        if int(torch.cuda.cudart().cudaHostRegister(values.data_ptr(), values.nbytes, _PORTABLE)):
            self.refused_bytes = values.nbytes
            return False
        self.num_bytes += values.nbytes
        return True

    def pinned(self, pin: Callable[[], T], num_bytes: int) -> T | None:
        """What `pin` returns, which pins `num_bytes`; None if the system refuses that, or has refused as much."""
        if self.refused_bytes is not None and num_bytes >= self.refused_bytes:
            return None
        try:
            return pin()
        except RuntimeError as error:
            if not any(sign in str(error) for sign in _SIGNS_OF_REFUSAL):
                raise
        self.refused_bytes = num_bytes
        return None

    @property
    def warning(self) -> str:
        """What to say about refused memory, as a sentence; "" if none was refused."""
        if self.refused_bytes is None:
            return ""
        return (
            f"The system refused to pin more than {self.num_bytes / 2**30:.1f} GiB of memory for copies from and to "
            "the GPU, so that steps wait for such copies; the results are the same. Keep less of the run in system "
            "memory (model.blocks_to_swap, optimizer.state_in_ram, model.activation_offloading), or close other "
            "programs."
        )


PINNED = PinnedMemory()
"""That of this process, of which CUDA refuses or accepts all."""
