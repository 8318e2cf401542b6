"""Batch normalization with the statistics of all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import batch_norm
from torch.overrides import TorchFunctionMode


@contextlib.contextmanager
def synchronized_batch_norm(layers: Iterable[nn.Module], counts: bool = True) -> Iterator[None]:
    """Inside, BatchNorm layers in training mode normalize with the statistics of all ranks.

    N ranks then give the same results as one rank with the concatenated batch, even if batch sizes differ or a batch is
    empty. Running statistics get the same updates on every rank. All ranks must run the same layers in the same order.
    Run backward passes inside, too, because they may run layers again (gradient checkpointing).
    counts: whether this rank's batch contributes to the statistics; if not, it is only normalized with them.

    The layers' calls of `torch.nn.functional.batch_norm` are redirected instead of replacing layers. The model keeps
    its classes, keys and hooks, BatchNorm classes with their own forward are synchronized, too, and outside of this
    context a rank may call the model alone. torch.nn.SyncBatchNorm computes the same, but is a different class, does
    not support CPU tensors, makes the host wait for the GPU in every layer and can't exclude a batch.
    Source: Ioffe & Szegedy 2015, arXiv 1502.03167.
    """
    own = {layer: vars(layer).get("forward") for layer in layers if layer.training}  # None: the class's forward
    for layer in own:
        layer.forward = partial(_forward, counts, layer.forward)
    try:
        yield
    finally:
        for layer, forward in own.items():
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward


def _forward(counts: bool, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _AllRanks(counts):
        return forward(*args, **kwargs)


class _AllRanks(TorchFunctionMode):
    """Inside, `torch.nn.functional.batch_norm` uses the statistics of all ranks instead of the batch's."""

    def __init__(self, counts: bool):
        super().__init__()
        self._counts = counts

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is batch_norm:
            return self._batch_norm(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))

    def _batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            return batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
        with torch.no_grad():
            mean, variance, count = _statistics(x, self._counts)
            if running_mean is not None:
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            if running_var is not None:
                unbiased = variance * (count / (count - 1).clamp(min=1))
                running_var.lerp_(unbiased.to(running_var.dtype), momentum)
            scale = (variance + eps).rsqrt()
        return _Normalize.apply(x, weight, bias, mean, scale, count, self._counts)


def _statistics(x: Tensor, counts: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Mean [C], variance [C] and number of values per channel [1] over all ranks. One collective.

    x: [N, C, ...]. Merges each rank's mean and sum of squared deviations; sums of squares would suffer cancellation.
    Source: Chan, Golub & LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances".
    """
    precise = _at_least_float32(x)
    channels = x.shape[1]
    own = precise.new_zeros(2 * channels + 1)
    if counts and x.numel():
        variance, mean = torch.var_mean(precise, _axes(x), correction=0)
        count = x.numel() // channels
        own = torch.cat([mean, variance * count, precise.new_full((1,), count)])
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, own)
    means, deviations, counts_of_ranks = torch.stack(rows).split((channels, channels, 1), dim=1)
    total = counts_of_ranks.sum(0)
    mean = (means * counts_of_ranks).sum(0) / total
    deviation = (deviations + counts_of_ranks * (means - mean).square()).sum(0)
    return mean, deviation / total, total


class _Normalize(torch.autograd.Function):
    """(x - mean) * scale * weight + bias, where mean and scale are computed from x on all ranks that count."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        scale: Tensor,
        count: Tensor,
        counts: bool,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, scale, count)
        ctx.counts = counts
        normalized = (_at_least_float32(x) - _per_channel(mean, x)) * _per_channel(
            scale if weight is None else scale * weight, x
        )
        return (normalized if bias is None else normalized + _per_channel(bias, x)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale, count = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        gradient, centered = _at_least_float32(gradient), _at_least_float32(x) - _per_channel(mean, x)
        sums = torch.stack([gradient.sum(_axes(x)), (gradient * centered).sum(_axes(x)) * scale])
        # local gradients, as for every other parameter: DDP sums them over the ranks
        bias_gradient = sums[0] if needs_bias else None
        weight_gradient = sums[1] if needs_weight else None
        x_gradient = None
        if needs_x:
            totals = sums.clone()
            dist.all_reduce(totals)  # x affects mean and scale on all ranks
            if ctx.counts:
                gradient = (
                    gradient
                    - _per_channel(totals[0] / count, x)
                    - centered * _per_channel(scale * totals[1] / count, x)
                )
            x_gradient = gradient * _per_channel(scale if weight is None else scale * weight, x)
        return x_gradient, weight_gradient, bias_gradient, None, None, None, None


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _axes(x: Tensor) -> list[int]:
    """All axes except the channels."""
    return [0, *range(2, x.dim())]


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    """Reshapes [C] to broadcast over the channels of x."""
    return values.view(-1, *[1] * (x.dim() - 2))
