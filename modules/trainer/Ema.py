"""An exponential moving average of what trains."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class Ema:
    """Averaged copies of `params` (name -> parameter).

    The decay rises from 0.1 as (1 + step) / (10 + step) up to `decay`, so that the first steps do not hold on to the
    start (the rule of TensorFlow's ExponentialMovingAverage).
    """

    def __init__(self, params: dict[str, nn.Parameter], decay: float):
        self.params = params
        self.decay = decay
        self.averages: dict[str, Tensor] = {name: param.detach().clone() for name, param in params.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After optimizer step number `step` (from 1)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        current = [param.detach() for param in self.params.values()]
        torch._foreach_lerp_(list(self.averages.values()), current, 1 - decay)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the parameters hold the averages; nothing is copied."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def load(self, averages: dict[str, Tensor]) -> None:
        for name, value in averages.items():
            self.averages[name].copy_(value)

    def _swap(self) -> None:
        for name, param in self.params.items():
            param.data, self.averages[name] = self.averages[name], param.data
