"""Keeps only the inputs of blocks for the backward pass, which computes what is inside of them again.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def checkpoint_activations(blocks: Iterable[nn.Module]) -> None:
    """Changes the modules in place; their classes and the names of their weights stay. A second call does nothing."""
    for block in blocks:
        if not isinstance(block.forward, _Checkpointed):
            block.forward = _Checkpointed(block)


class _Checkpointed:
    """The forward of a block."""

    def __init__(self, block: nn.Module):
        self._block = block
        self._forward = block.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        return checkpoint(self._forward, *args, use_reentrant=False, context_fn=self._contexts, **kwargs)

    def _contexts(self) -> tuple[contextlib.AbstractContextManager, contextlib.AbstractContextManager]:
        return contextlib.nullcontext(), _with_copied_buffers(self._block)


@contextlib.contextmanager
def _with_copied_buffers(block: nn.Module) -> Iterator[None]:
    """What changes buffers, such as the statistics of BatchNorm, has done so in the forward pass already."""
    own = [(part, dict(part._buffers)) for part in block.modules() if part._buffers]
    for part, buffers in own:
        part._buffers.update({name: value if value is None else value.clone() for name, value in buffers.items()})
    try:
        yield
    finally:
        for part, buffers in own:
            part._buffers.update(buffers)
