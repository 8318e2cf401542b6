"""The strength of adapters while they train: a factor of their scale, which copies no weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from torch import nn

from modules.methods.frozen import adapted_layers
from modules.weights.adapters.kinds import ADAPTER


class AdapterStrength:
    """Switches the trained adapters in `modules` between strengths; outside of `at`, it is 1."""

    def __init__(self, modules: Iterable[nn.Module]):
        layers = cast("list[Any]", adapted_layers(modules))
        self._scales = [(layer.scaling, layer.scaling[ADAPTER]) for layer in layers if ADAPTER in layer.scaling]
        self._now = 1.0

    @contextlib.contextmanager
    def at(self, strength: float) -> Iterator[None]:
        """Context in which the adapters have this strength."""
        before = self._now
        self._set(strength)
        try:
            yield
        finally:
            self._set(before)

    def checkpointed(self, checkpoint: Callable[..., Any]) -> Callable[..., Any]:
        """`checkpoint`, so that the backward pass computes a block again at the strength that it had."""

        def checkpoint_at(block: Callable[..., Any], *args: Any, **arguments: Any) -> Any:
            strength = self._now

            def run(*inputs: Any, **named: Any) -> Any:
                with self.at(strength):
                    return block(*inputs, **named)

            return checkpoint(run, *args, **arguments)

        return checkpoint_at

    def _set(self, strength: float) -> None:
        if strength != self._now:
            for scaling, scale in self._scales:
                scaling[ADAPTER] = strength * scale
            self._now = strength
