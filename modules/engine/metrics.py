"""Means of losses and metrics over all samples of a dataset, independent of batches and ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor

from modules.config.errors import UserError
from modules.distributed.Runtime import Runtime

# (output, target) -> one value per sample, or (sum, count); or a torchmetrics object
Metric = Callable[[Any, Any], Tensor | tuple[Any, Any]]


class TorchMetric(Protocol):
    """What the metrics of torchmetrics have in common."""

    def update(self, output: Any, target: Any) -> None: ...

    def compute(self) -> Any: ...

    def reset(self) -> None: ...


def is_torchmetric(metric: Any) -> TypeGuard[TorchMetric]:
    """Whether `metric` accumulates its own state, like those of torchmetrics."""
    return all(callable(getattr(metric, name, None)) for name in ("update", "compute", "reset"))


def sum_and_count(name: str, value: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """The value of a metric for a batch as (sum, count), scalars on `device`. Raises UserError for a wrong form."""
    if isinstance(value, tuple) and len(value) == 2:
        total, count = (_scalar(part, device) for part in value)
        return total, count
    if isinstance(value, Tensor) and value.dim() > 0:
        return _scalar(value, device), _scalar(value.shape[0], device)
    raise UserError(
        f"metric {name!r} returned {type(value).__name__} without samples: return one value per sample, shape (N,), "
        "or a pair (sum, count)."
    )


def mean_to_sum(mean: Any, samples: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A mean over `samples` as (sum, count), scalars on `device`."""
    return _scalar(mean, device) * samples, _scalar(samples, device)


def _scalar(value: Any, device: torch.device) -> Tensor:
    """The sum of `value`, a number or tensor, in float64 on `device`."""
    if isinstance(value, Tensor):
        return value.detach().to(device, torch.float64, non_blocking=True).sum()
    # filled on the device: a tensor made on the CPU would have to be copied, for which the host waits
    return torch.full((), float(value), dtype=torch.float64, device=device)


class MeanFigures:
    """Sums losses and metrics over batches on the device, and computes their means over all ranks."""

    def __init__(self, metrics: Mapping[str, Metric], device: torch.device):
        self._metrics = metrics
        self._sums: dict[str, Tensor] = {}
        for metric in metrics.values():
            if is_torchmetric(metric):
                metric.reset()
                if hasattr(metric, "to"):
                    metric.to(device)

    def add(self, name: str, total: Tensor, count: Tensor) -> None:
        values = torch.stack([total, count])
        self._sums[name] = self._sums[name] + values if name in self._sums else values

    def means(self, runtime: Runtime, why: str) -> dict[str, float]:
        """The means by name, the same on all ranks; nan for a metric without samples. All ranks must call it."""
        own = {name: values.tolist() for name, values in self._sums.items()}
        ranks = runtime.gather(own, why)
        figures = {}
        for name in dict.fromkeys(name for rank in ranks for name in rank):
            total, count = (sum(rank[name][i] for rank in ranks if name in rank) for i in range(2))
            figures[name] = total / count if count else float("nan")
        objects = {name: metric for name, metric in self._metrics.items() if is_torchmetric(metric)}
        without = [rank for rank, sums in enumerate(ranks) if not sums]
        lists = [name for name, metric in objects.items() if _has_lists(metric)]
        if lists and figures and without:  # torchmetrics can't combine an empty list with those of the other ranks
            raise UserError(
                f"metric {lists[0]!r}: rank {without[0]} has no samples to compute it from; use a val_loader with at "
                f"least {len(ranks)} batches, or fewer ranks."
            )
        for name, metric in objects.items():
            figures[name] = _number(name, metric.compute())  # it combines the ranks itself
        return figures


def _has_lists(metric: Any) -> bool:
    """Whether it collects the outputs of all batches, as torchmetrics' AUROC does, instead of summing over them."""
    return any(isinstance(state, list) for state in getattr(metric, "metric_state", {}).values())


def _number(name: str, value: Any) -> float:
    """The result of a torchmetrics object. Raises UserError if it is not a single number."""
    if hasattr(value, "__float__") and (not isinstance(value, Tensor) or value.numel() == 1):
        return float(value)
    found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise UserError(
        f"metric {name!r} computes {found}, but the history has one number per epoch: choose an average, such as "
        "average='macro', or pass a MetricCollection itself as metrics."
    )
