"""Errors between a prediction and its target.

Legend: B batch; the other axes of latents are arbitrary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

HuberSchedule = Literal["constant", "exponential", "snr"]


@dataclass(frozen=True)
class LossMix:
    """A weighted sum of squared, absolute, Huber, smooth L1 and log-cosh error; by default the squared error alone."""

    mse: float = 1.0
    mae: float = 0.0
    huber: float = 0.0
    smooth_l1: float = 0.0
    log_cosh: float = 0.0

    def error(self, prediction: Tensor, target: Tensor, delta: Tensor | None = None) -> Tensor:
        """The error of each element, at least in float32. delta: [B], the threshold of Huber and smooth L1."""
        dtype = torch.promote_types(prediction.dtype, torch.float32)
        difference = prediction.to(dtype) - target.to(dtype)
        terms = []
        if self.mse:
            terms.append(_scaled(difference.square(), self.mse))
        if self.mae:
            terms.append(_scaled(difference.abs(), self.mae))
        if self.huber or self.smooth_l1:
            if delta is None:
                raise ValueError("Huber and smooth L1 errors need a delta")
            delta = per_sample(delta, difference)
            # The smooth L1 error is the Huber error divided by delta.
            terms.append(pseudo_huber(difference, delta) * (self.huber + self.smooth_l1 / delta))
        if self.log_cosh:
            terms.append(_scaled(log_cosh(difference), self.log_cosh))
        return sum(terms[1:], terms[0])


def pseudo_huber(difference: Tensor, delta: Tensor) -> Tensor:
    """2 delta (sqrt(difference^2 + delta^2) - delta): squared for small differences, 2 delta |difference| for large.

    Source: Song & Dhariwal 2023, arXiv 2310.14189, scaled as in diffusers' training examples.
    """
    return 2 * delta * ((difference.square() + delta.square()).sqrt() - delta)


def log_cosh(difference: Tensor) -> Tensor:
    """log(cosh(difference)): difference^2 / 2 for small differences, |difference| - log 2 for large."""
    size = difference.abs()
    return size + functional.softplus(-2 * size) - math.log(2)  # cosh itself would overflow beyond 89


def huber_delta(schedule: HuberSchedule, delta: float, t: Tensor, snr: Tensor) -> Tensor:
    """[B], the threshold at which the Huber error changes from squared to absolute.

    t: [B], normalized timestep in [0, 1]. snr: [B].
    "exponential" and "snr" both decrease from 1 at t = 0 to `delta` at t = 1, "snr" as 1 / (1 + noise / signal)^2.
    Source: Khrapov et al. 2024, arXiv 2403.16728.
    """
    if schedule == "exponential":
        return delta**t
    if schedule == "snr":
        return (1 - delta) / (1 + snr.rsqrt()).square() + delta
    return torch.full_like(t, delta)


def masked_mean(error: Tensor, mask: Tensor, outside: float, by_area: bool) -> Tensor:
    """[B], the mean error of each sample, weighted with 1 where `mask` is 1 and with `outside` where it is 0.

    mask: in the shape of `error`, with one channel.
    by_area: whether to divide by the mean weight, so that small masks do not give small losses.
    """
    weight = mask if outside == 0 else outside + (1 - outside) * mask
    mean = (error * weight).flatten(1).mean(1)
    if not by_area:
        return mean
    # at least one cell, so that an empty mask gives a loss of 0 instead of 0 / 0
    return mean / weight.flatten(1).mean(1).clamp(min=1 / weight[0].numel())


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """Reshapes `values`, [B], so that they broadcast over the samples of `like`."""
    return values.view(-1, *[1] * (like.dim() - 1))


def _scaled(error: Tensor, weight: float) -> Tensor:
    return error if weight == 1 else error * weight
