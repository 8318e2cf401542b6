"""A training loop whose step function makes the optimizer steps itself, as for GANs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from modules.config.errors import UserError
from modules.engine.batches import num_samples
from modules.engine.EngineOptimizer import EngineOptimizer
from modules.engine.NamedOptimizers import NamedOptimizers
from modules.layers.LowCopies import forget_casts
from modules.trainer.LateReport import LOSS, Names, is_not_finite, sums_of
from modules.trainer.Step import Step
from modules.trainer.TrainingLoop import TrainingLoop

NAMED = 3  # parameters in a message


class ManualLoop(TrainingLoop):
    """The step function calls `backward` for each step of an optimizer; the loss that it returns is only reported.

    The optimizer must be NamedOptimizers, and a step has a single micro-batch. The step function gets the model itself:
    DistributedDataParallel would await one backward pass after each forward pass, from which all parameters get a
    gradient.
    """

    optimizer: NamedOptimizers

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._call = self.model
        self._needs_warm_up = False  # it is for DistributedDataParallel
        self._unused_parameters = bool(options.get("unused_parameters"))
        self._step: Step | None = None  # the one that is being trained
        self._skipped = torch.zeros((), dtype=torch.bool, device=self.runtime.device)
        self._norms: list[Tensor] = []

    def backward(self, loss: Tensor, name: str, samples: int | None, retain_graph: bool) -> None:
        """See `TrainingEngine.backward`."""
        if self._step is None:
            return
        optimizer = self._named(name)
        if any(param.grad is not None for param in optimizer.params):
            raise UserError(
                f"engine.backward: the parameters of {name!r} have a gradient already; leave every backward() of "
                "step_fn to engine.backward."
            )
        count = 0 if self._step.padding else self._num_samples(samples)
        with torch.autocast(self.runtime.device.type, enabled=False):
            summed = self.loss_scaler.scale(loss * count)
            torch.autograd.backward(summed, inputs=optimizer.params, retain_graph=retain_graph)
        gradients = self._summed_gradients(name, optimizer)
        own = sums_of(loss, loss.new_full((), count, dtype=torch.float64))
        (loss_of_all, samples_of_all), norm = self.runtime.sum_with_norm(own, gradients)
        skipped = is_not_finite(loss_of_all, norm)
        divisor = samples_of_all * self.loss_scaler.value
        norm = norm / divisor
        self._apply_gradients(optimizer, gradients, divisor, norm, skipped)
        for param in optimizer.params:
            param.grad = None
        forget_casts()  # copies of the weights from before the step
        self._skipped = self._skipped | skipped
        self._norms.append(norm)

    def _named(self, name: str) -> EngineOptimizer:
        if name not in self.optimizer.by_name:
            known = ", ".join(self.optimizer.by_name)
            raise UserError(f"engine.backward: there is no optimizer {name!r}; those of train are {known}.")
        return self.optimizer.by_name[name]

    def _num_samples(self, given: int | None) -> int:
        assert self._step is not None
        batch, planned = self._step.micro_batches[0]
        samples = num_samples(batch, planned) if given is None else given
        if not samples and given is None:
            raise UserError("engine.backward: the number of samples in this batch is unknown; pass samples.")
        return samples

    def _summed_gradients(self, name: str, optimizer: EngineOptimizer) -> list[Tensor]:
        """The gradients of the optimizer's parameters, summed over the ranks."""
        if self.runtime.world_size > 1:
            self._fill_in(name, optimizer)
        gradients = [param.grad for param in optimizer.params if param.grad is not None]
        if not gradients:
            raise UserError(
                f"engine.backward: the loss for {name!r} does not depend on the parameters of this optimizer; compute "
                "it from the model's output, without detach() or item()."
            )
        self.runtime.sum_gradients(gradients)
        return gradients

    def _fill_in(self, name: str, optimizer: EngineOptimizer) -> None:
        """Gives zeros to parameters that only have a gradient on other ranks, as all exchange the same ones."""
        params = optimizer.params
        if self._unused_parameters:
            is_used = torch.tensor([param.grad is not None for param in params], dtype=torch.float64)
            is_used = is_used.to(self.runtime.device)
            for param, ranks in zip(params, self.runtime.sum(is_used, is_used.new_zeros(()))[0].tolist(), strict=True):
                if ranks and param.grad is None:
                    param.grad = torch.zeros_like(param)
        elif any(param.grad is None for param in params):
            names = [key for key, param in self.trainable.items() if param in set(params) and param.grad is None]
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            raise UserError(
                f"engine.backward: parameters of {name!r} ({', '.join(names[:NAMED])}{more}) got no gradient, which "
                "ranks wait for: pass unused_parameters=True, or freeze them with requires_grad_(False)."
            )

    def _update(self, step: Step) -> tuple[Tensor, Tensor, Names]:
        self._step, self._norms, self._skipped = step, [], torch.zeros_like(self._skipped)
        totals, names = self._accumulate(step, lambda loss: None)
        self._step = None
        if not self._norms:
            raise UserError(
                "step_fn: it has made no optimizer step; with optimizers by name, call engine.backward(loss, name) for "
                "each of them."
            )
        totals, norm = self.runtime.sum(totals, torch.stack(self._norms).norm())
        totals[LOSS].masked_fill_(self._skipped, math.nan)  # so that the step is reported as skipped
        self.loss_scaler.update(self._skipped)
        return totals, norm, names
