"""Counts what PyTorch is asked to compute."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class OperationCounter(TorchDispatchMode):
    """Counts operations, those of backward passes included; most of them are a kernel on a GPU."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))
