"""The model as it was before the training, without a second one in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from torch import nn


@contextlib.contextmanager
def without_adapters(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Inside, the modules compute as if their adapters (LoRA, by peft) were not there."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [layer for module in modules for layer in module.modules() if isinstance(layer, BaseTunerLayer)]
    # peft switches requires_grad with the adapters, for all of them alike: what did not train must not train afterwards
    trains = [(param, param.requires_grad) for layer in layers for param in layer.parameters()]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        for param, flag in trains:
            param.requires_grad_(flag)
