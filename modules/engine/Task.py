"""How TrainingEngine computes loss and metrics of a batch, in training and in evaluation alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from modules.config.errors import UserError
from modules.engine.arguments import check_function, check_metric_name, check_metrics
from modules.engine.batches import num_samples
from modules.engine.metrics import Metric, is_torchmetric, mean_to_sum, sum_and_count

_OF_PARTS = "mixed torch.Tensor and DTensor"  # in torch's error for what is computed with parts of weights

Criterion = Callable[[Any, Any], Tensor]
# (model, batch) -> mean loss of the batch | (loss, samples) | (loss, samples, name -> metric)
StepFn = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class BatchResult:
    """loss: mean over the batch's samples, a scalar. sums: metric -> (sum, count), scalars on the loss's device."""

    loss: Tensor
    samples: int
    sums: dict[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Task:
    """Exactly one of criterion and step_fn must be given.

    metrics: for criterion; a step_fn returns its own. caller: the engine's method that was given them.
    """

    criterion: Criterion | None = None
    step_fn: StepFn | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    caller: str = "train"

    def __post_init__(self) -> None:
        check_function("criterion", self.criterion)
        check_function("step_fn", self.step_fn)
        check_metrics(self.metrics)
        for name, metric in self.metrics.items():
            check_metric_name(name)
            if not is_torchmetric(metric):
                check_function(f"metric {name!r}", metric)
        if (self.criterion is None) == (self.step_fn is None):
            raise UserError(
                f"{self.caller} needs either criterion(output, target), for batches of (inputs, target), or "
                "step_fn(model, batch): pass exactly one of them."
            )

    def run(self, model: nn.Module, batch: Any, planned: int | None = None, measures: bool = True) -> BatchResult:
        """The forward pass of a batch that is on the model's device. Nothing in it waits for the device.

        planned: as in `num_samples`.
        measures: whether to compute `metrics`, and to update those that are torchmetrics objects.
        """
        if self.step_fn is not None:
            return _step_result(self._stepped(model, batch), batch, planned)
        assert self.criterion is not None  # one of the two is given
        inputs, target = _inputs_and_target(batch)
        output = model(inputs)
        loss = _mean_loss(self.criterion(output, target), "criterion")
        sums = self._measured(output, target, loss.device) if measures and self.metrics else {}
        return BatchResult(loss, num_samples(batch, planned), sums)

    def _stepped(self, model: nn.Module, batch: Any) -> Any:
        assert self.step_fn is not None
        try:
            return self.step_fn(model, batch)
        except RuntimeError as error:
            if _OF_PARTS not in str(error):
                raise
            raise UserError(
                "step_fn: it uses weights outside of the model's forward, where each rank has only a part of them; do "
                "it in forward, or use strategy='zero1' or 'ddp'."
            ) from error

    @torch.no_grad()
    def _measured(self, output: Any, target: Any, device: torch.device) -> dict[str, tuple[Tensor, Tensor]]:
        sums = {}
        for name, metric in self.metrics.items():
            if is_torchmetric(metric):
                metric.update(output, target)
            else:
                sums[name] = sum_and_count(name, metric(output, target), device)
        return sums


def _step_result(result: Any, batch: Any, planned: int | None) -> BatchResult:
    loss, samples, metrics = (*result, None, None)[:3] if isinstance(result, tuple) else (result, None, None)
    loss, samples = _mean_loss(loss, "step_fn"), num_samples(batch, planned) if samples is None else int(samples)
    if not samples:
        raise UserError("step_fn: the number of samples in this batch is unknown; return (loss, samples).")
    for name in metrics or {}:
        check_metric_name(name)
    sums = {
        name: sum_and_count(name, value, loss.device)
        if isinstance(value, tuple)
        else mean_to_sum(value, samples, loss.device)
        for name, value in (metrics or {}).items()
    }
    return BatchResult(loss, samples, sums)


def _inputs_and_target(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0], batch[1]
    raise UserError(
        f"criterion is for batches of (inputs, target), but the loader yields {type(batch).__name__}"
        f"{f' of {len(batch)}' if isinstance(batch, list | tuple) else ''}: use step_fn(model, batch)."
    )


def _mean_loss(loss: Tensor, who: str) -> Tensor:
    if not isinstance(loss, Tensor):
        forms = ", (loss, samples) or (loss, samples, metrics)" if who == "step_fn" else ""
        raise UserError(f"{who} returned {type(loss).__name__}: return the loss, a scalar tensor{forms}.")
    if loss.dim() > 0:
        raise UserError("The loss must be the mean over the batch, a scalar tensor; use reduction='mean'.")
    return loss
