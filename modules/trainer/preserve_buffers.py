"""Forward passes that leave no trace in the buffers of a module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def preserve_buffers(module: nn.Module) -> Iterator[None]:
    """Afterwards every buffer has the value from before, whatever forward passes inside have done to it."""
    # on the host: the device's memory may be nearly full
    values = {name: buffer.to("cpu", copy=True) for name, buffer in module.named_buffers()}
    yield
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name in values and buffer.shape == values[name].shape:
                buffer.copy_(values[name])
