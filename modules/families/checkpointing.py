"""Gradient checkpointing for denoisers that diffusers does it wrongly for, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def checkpoint_each(blocks: Iterable[nn.Module]) -> None:
    """Lets each block compute its activations again for the backward pass instead of keeping them."""
    for block in blocks:
        if "forward" not in vars(block):  # a second call changes nothing
            vars(block)["forward"] = partial(_checkpointed, block, block.forward)


def _checkpointed(block: nn.Module, forward: Callable, *args: Any, **arguments: Any) -> Any:
    import torch
    from torch.utils.checkpoint import checkpoint

    if not torch.is_grad_enabled():
        return forward(*args, **arguments)
    checkpointed = vars(block)["forward"]

    def run(*args: Any, **arguments: Any) -> Any:
        vars(block)["forward"] = forward
        try:
            return block(*args, **arguments)  # with its hooks, also when it runs again
        finally:
            vars(block)["forward"] = checkpointed

    return checkpoint(run, *args, use_reentrant=False, **arguments)
