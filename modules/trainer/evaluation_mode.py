"""Modules as they are used where nothing trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import nn


@contextmanager
def evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """Inside, without dropout and with running statistics that don't change; then each part is as it was.

    Parts that are compiled are called as they were written: for a few calls without gradients, and for shapes of their
    own, they would be compiled once more.
    """
    parts = [part for module in modules for part in module.modules()]
    training = [part for part in parts if part.training]
    for part in training:
        part.training = False
    try:
        with _uncompiled(parts):
            yield
    finally:
        for part in training:
            part.training = True


def _uncompiled(parts: list[nn.Module]) -> AbstractContextManager[None]:
    if all(part._compiled_call_impl is None for part in parts):
        return nullcontext()  # the compiler takes seconds to import
    import torch

    return torch.compiler.set_stance("force_eager")
