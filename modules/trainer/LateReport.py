"""Loss and metrics of a step, read on the host one step late so that no step waits for the device."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from modules.layers.PinnedMemory import PINNED
from modules.machine.devices import is_gpu
from modules.trainer.Step import Step

LOSS, COUNT = 0, 1  # positions in the totals of a step
COUNTED = "/count"  # ends the name of the sum by which that of a metric is divided


@dataclass(frozen=True)
class StepFigures:
    """One step over all ranks. loss: mean over its samples; None if the step was skipped because it was not finite.

    has_bad_gradient: whether the loss was finite and a gradient was not.
    requests: names of the requested actions. metrics: means over the samples, like `loss`, or over the number of other
    things in `counts`.
    """

    loss: float | None
    samples: int
    grad_norm: float | None
    has_bad_gradient: bool
    requests: frozenset[str]
    metrics: dict[str, float]
    counts: dict[str, float]


class LateReport:
    """The results of one step, copied asynchronously from the device to the host.

    number: of the optimizer step, from 1. seconds: wall time since the previous step; data_seconds: how much of it was
        spent waiting for data.
    totals: [2 + requests + metrics], summed over ranks: loss, number of samples, number of ranks with each request, and
        the sum of each metric.
    norm: of the gradient. The step was skipped if the loss or the norm is not finite.
    """

    def __init__(
        self,
        step: Step,
        number: int,
        seconds: float,
        rates: dict[str, float],
        totals: Tensor,
        norm: Tensor,
        names: Names,
        data_seconds: float = 0.0,
    ):
        self.step = step
        self.number = number
        self.seconds = seconds
        self.learning_rates = rates
        self.data_seconds = data_seconds
        self._names = names
        figures = torch.cat([totals, norm.to(totals.dtype).reshape(1)])
        self._event = None
        if is_gpu(figures.device):
            make = partial(torch.empty, figures.shape, dtype=figures.dtype)
            host = PINNED.pinned(partial(make, pin_memory=True), figures.nbytes)
            self._figures = (make() if host is None else host).copy_(figures, non_blocking=True)
            self._event = torch.cuda.Event(blocking=True)  # else a core would be busy while the host waits for it
            self._event.record(torch.cuda.current_stream(figures.device))
        else:
            self._figures = figures

    def read(self) -> StepFigures:
        if self._event is not None:
            self._event.synchronize()
        loss_sum, count, *rest, norm = self._figures.tolist()
        has_loss, has_norm = math.isfinite(loss_sum), math.isfinite(norm)
        split = len(self._names.requests)
        requests = frozenset(name for name, value in zip(self._names.requests, rest[:split], strict=True) if value)
        sums = dict(zip(self._names.metrics, rest[split:], strict=True))
        counts = {name.removesuffix(COUNTED): value for name, value in sums.items() if name.endswith(COUNTED)}
        return StepFigures(
            loss=loss_sum / count if has_loss and has_norm else None,
            samples=int(count),
            grad_norm=norm if has_norm else None,
            has_bad_gradient=has_loss and not has_norm,
            requests=requests,
            metrics=_means(sums, counts, count),
            counts=counts,
        )


def _means(sums: dict[str, float], counts: dict[str, float], samples: float) -> dict[str, float]:
    """Divides each sum by its own count, or by `samples`; metrics with a count of 0 are left out."""
    divisors = {name: counts.get(name, samples) for name in sums if not name.endswith(COUNTED)}
    return {name: sums[name] / divisor for name, divisor in divisors.items() if divisor}


@dataclass(frozen=True)
class Names:
    """The names of the entries in the totals."""

    requests: tuple[str, ...]
    metrics: tuple[str, ...]


def sums_of(loss: Tensor, *metrics: Tensor) -> Tensor:
    """Those of a micro-batch, scalars, in a vector."""
    doubles = [value.detach().double() for value in (loss, *metrics)]
    return torch.stack(doubles) if metrics else doubles[0].reshape(1)


def totals_of(sums: list[Tensor], samples: int, requested: Set[str], names: Names) -> Tensor:
    """The totals of one rank; `sums` are those of its micro-batches."""
    total = torch.stack(sums).sum(0) if sums[1:] else sums[0]
    numbers = _on_device((samples, *(name in requested for name in names.requests)), total.device)
    return torch.cat([total[:1], numbers, total[1:]] if names.metrics else [total, numbers])


@lru_cache(maxsize=64)
def _on_device(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """Kept, not to be changed: nearly all steps have as many samples and no requests."""
    return torch.tensor(numbers, dtype=torch.float64).to(device, non_blocking=True)


def is_not_finite(*values: Tensor) -> Tensor:
    """Whether one of these scalars of type float64 is not (scalar, bool)."""
    outcome = sum(values[1:], values[0])
    return torch.isnan(outcome - outcome)  # a quarter of the kernels of isfinite
