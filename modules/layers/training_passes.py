"""Which forward passes compute as a training step does, in fewer operations than diffusers asks for.

Samples and validation compute as diffusers does, to the bit. A prediction of the frozen model that a step compares its
own with has no gradients either, but has to be made of the operations of that step: the difference of two ways to round
would else be trained on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_is_compared: ContextVar[bool] = ContextVar("_is_compared", default=False)


def is_training_pass() -> bool:
    """Whether layers compute as in a step. Not while torch compiles, which fuses operations by itself."""
    return not torch.compiler.is_compiling() and (torch.is_grad_enabled() or _is_compared.get())


@contextmanager
def compared_prediction() -> Iterator[None]:
    """Inside, predictions have no gradients and are computed as those of a step that has them."""
    before = _is_compared.set(True)
    try:
        with torch.no_grad():
            yield
    finally:
        _is_compared.reset(before)
