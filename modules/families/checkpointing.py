"""Gradient checkpointing for denoisers that diffusers does it wrongly for, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def checkpoint_each(blocks: Iterable[nn.Module], checkpoint: Callable[..., Any] | None = None) -> None:
    """Lets each block compute its activations again for the backward pass instead of keeping them.

    checkpoint: calls a block with its arguments and does so; None for torch's own. A second call replaces it.
    """
    for block in blocks:
        if not isinstance(vars(block).get("forward"), _Checkpointed):
            vars(block)["forward"] = _Checkpointed(block)
        vars(block)["forward"].checkpoint = checkpoint


class _Checkpointed:
    """In place of the `forward` of a block."""

    def __init__(self, block: nn.Module):
        self._block = block
        self._forward = block.forward
        self.checkpoint: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **arguments: Any) -> Any:
        import torch
        from torch.utils.checkpoint import checkpoint

        if not torch.is_grad_enabled():
            return self._forward(*args, **arguments)
        return (self.checkpoint or partial(checkpoint, use_reentrant=False))(self._run, *args, **arguments)

    def _run(self, *args: Any, **arguments: Any) -> Any:
        vars(self._block)["forward"] = self._forward
        try:
            return self._block(*args, **arguments)  # with its hooks, also when it runs again
        finally:
            vars(self._block)["forward"] = self
