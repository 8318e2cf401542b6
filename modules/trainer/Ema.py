"""An exponential moving average (EMA) of the trainable parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from modules.distributed.shards import Saved, assign, swap_values
from modules.layers.LowCopies import forget_casts
from modules.trainer.stochastic_rounding import split_into_chunks


class Ema:
    """Averaged copies of `params` (name -> parameter), at least in float32: in bf16, small updates would be lost.

    The decay warms up from 0.18 to `decay` as (1 + step) / (10 + step), so that the initial weights fade quickly (the
    rule of TensorFlow's ExponentialMovingAverage).
    update_every: steps between updates; the decay of each update accounts for all of them. start_after: number of steps
    before averaging starts; until then the current weights are used.
    """

    def __init__(self, params: dict[str, nn.Parameter], decay: float, update_every: int = 1, start_after: int = 0):
        self.params = params
        self.decay = decay
        self.averages: dict[str, Tensor] = {name: _precise(param.detach()).clone() for name, param in params.items()}
        self._parts = _in_parts(params, self.averages)
        self._update_every = update_every
        self._start_after = start_after
        self._step = 0

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After optimizer step number `step` (from 1)."""
        self._step = step
        if step < self._start_after:
            return
        number, rest = divmod(step - self._start_after, self._update_every)
        if rest:
            return
        decay = min(self.decay**self._update_every, (1 + number) / (10 + number))
        for params, averages in self._parts:
            _move_towards(averages, params, 1.0 if step == self._start_after else 1 - decay)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the parameters hold the averages."""
        if self._step < self._start_after:
            yield
            return
        with swap_weights({param: self.averages[name] for name, param in self.params.items()}):
            yield

    def load(self, averages: Mapping[str, Saved], step: int) -> None:
        """Restores the averages of a run after `step` steps."""
        self._step = step
        for name, value in averages.items():
            assign(self.averages[name], value)


@contextlib.contextmanager
def swap_weights(values: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Inside, each parameter holds its value from `values`; its own value is restored afterwards, bit for bit."""
    own = swap_values(values)
    forget_casts()  # they are kept by parameter object, which has not changed
    try:
        yield
    finally:
        swap_values(own)
        forget_casts()


def _in_parts(
    params: dict[str, nn.Parameter], averages: dict[str, Tensor]
) -> list[tuple[list[nn.Parameter], list[Tensor]]]:
    """Parameters with their averages. Low-precision parameters come in chunks, because each update copies them."""
    names = {param: name for name, param in params.items()}
    is_copied = {param: param.dtype != averages[name].dtype for name, param in params.items()}
    precise = [param for param in names if not is_copied[param]]
    parts = [precise, *split_into_chunks([param for param in names if is_copied[param]])]
    return [(part, [averages[names[param]] for param in part]) for part in parts if part]


def _move_towards(averages: list[Tensor], params: list[nn.Parameter], weight: float) -> None:
    """A function of its own, so that its float32 copies are freed before the next chunk."""
    torch._foreach_lerp_(averages, [_precise(param.detach()) for param in params], weight)


def _precise(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))
