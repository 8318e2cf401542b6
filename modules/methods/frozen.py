"""The model as it was before the training, without a second one in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from torch import nn


def adapted_layers(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """The layers of the modules that have an adapter (LoRA, by peft)."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [layer for module in modules for layer in module.modules() if isinstance(layer, BaseTunerLayer)]


@contextlib.contextmanager
def without_adapters(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, the layers, of `adapted_layers`, compute as if their adapters were not there."""
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
