"""Puts modules into evaluation mode temporarily."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import nn


@contextmanager
def evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """Inside, the modules are in evaluation mode; afterwards each submodule is as it was before.

    Compiled submodules run in eager mode: for a few calls without gradients, compiling again is not worth it.
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
