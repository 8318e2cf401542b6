"""Forward passes that leave the buffers of a module unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def preserve_buffers(module: nn.Module) -> Iterator[None]:
    """Restores the value of every buffer on exit."""
    # copied to the host because device memory may be nearly full
    values = {name: buffer.to("cpu", copy=True) for name, buffer in module.named_buffers()}
    yield
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name in values and buffer.shape == values[name].shape:
                buffer.copy_(values[name])
