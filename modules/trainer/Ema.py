"""An exponential moving average of what trains."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class Ema:
    """Averaged copies of `params` (name -> parameter), in float32 at least: in bf16 small updates would be lost.

    The decay rises from 0.1 as (1 + step) / (10 + step) up to `decay`, so that the first steps do not hold on to the
    start (the rule of TensorFlow's ExponentialMovingAverage).
    """

    def __init__(self, params: dict[str, nn.Parameter], decay: float):
        self.params = params
        self.decay = decay
        self.averages: dict[str, Tensor] = {name: _precise(param.detach()).clone() for name, param in params.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After optimizer step number `step` (from 1)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        current = [_precise(param.detach()) for param in self.params.values()]
        torch._foreach_lerp_(list(self.averages.values()), current, 1 - decay)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the parameters hold the averages."""
        trained = {name: param.data for name, param in self.params.items()}
        for name, param in self.params.items():
            param.data = self.averages[name].to(param.dtype)
        try:
            yield
        finally:
            for name, param in self.params.items():
                param.data = trained[name]

    def load(self, averages: dict[str, Tensor]) -> None:
        for name, value in averages.items():
            self.averages[name].copy_(value)


def _precise(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))
