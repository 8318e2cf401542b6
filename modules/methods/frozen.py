"""Runs the model as it was before training, without keeping a second copy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from torch import nn


class AdaptedLayer(Protocol):
    """A module that is also a `BaseTunerLayer` of PEFT."""

    def enable_adapters(self, enabled: bool) -> None: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


def adapted_layers(modules: Iterable[nn.Module]) -> list[AdaptedLayer]:
    """The layers of the modules that have a PEFT adapter."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [layer for module in modules for layer in module.modules() if isinstance(layer, BaseTunerLayer)]


@contextlib.contextmanager
def without_adapters(layers: Sequence[AdaptedLayer]) -> Iterator[None]:
    """Context in which `layers`, as returned by `adapted_layers`, run without their adapters."""
    # peft changes requires_grad of all parameters when it toggles adapters; it is restored afterwards
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
