"""Gradient checkpointing of blocks that may be captured in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import checkpoint as torch_checkpoint


def checkpoint(block: Callable[..., Any], *args: Any, **arguments: Any) -> Any:
    """`block(*args, **arguments)`, whose activations are computed again for the backward pass.

    While it is captured, the state of the random generators can't be read, so that it must not draw from them.
    """
    draws = not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": draws}
    return torch_checkpoint.checkpoint(block, *args, **options, **arguments)
