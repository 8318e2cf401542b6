"""How far a prediction is from its target.

Legend: B batch; latents have any further axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

HuberSchedule = Literal["constant", "exponential", "snr"]


@dataclass(frozen=True)
class LossMix:
    """The shares of squared, absolute and Huber error; they add, so 1, 0, 0 is the mean squared error alone."""

    mse: float = 1.0
    mae: float = 0.0
    huber: float = 0.0

    def error(self, prediction: Tensor, target: Tensor, delta: Tensor | None = None) -> Tensor:
        """The error of each value, as the latents, in float32 at least. delta: [B], for the Huber error."""
        dtype = torch.promote_types(prediction.dtype, torch.float32)
        difference = prediction.to(dtype) - target.to(dtype)
        terms = []
        if self.mse:
            terms.append(_scaled(difference.square(), self.mse))
        if self.mae:
            terms.append(_scaled(difference.abs(), self.mae))
        if self.huber:
            if delta is None:
                raise ValueError("the Huber error needs a delta")
            terms.append(_scaled(pseudo_huber(difference, per_sample(delta, difference)), self.huber))
        return sum(terms[1:], terms[0])


def pseudo_huber(difference: Tensor, delta: Tensor) -> Tensor:
    """2 delta (sqrt(difference^2 + delta^2) - delta): squared for small differences, 2 delta |difference| for large.

    Source: Song & Dhariwal 2023, arXiv 2310.14189, in the scale of diffusers' training examples.
    """
    return 2 * delta * ((difference.square() + delta.square()).sqrt() - delta)


def huber_delta(schedule: HuberSchedule, delta: float, t: Tensor, snr: Tensor) -> Tensor:
    """[B], where the Huber error turns from squared to absolute.

    t: [B], timestep as a part of all, in [0, 1]. snr: [B].
    "exponential" falls from 1 at the data to `delta` at the noise; "snr" does, too, as 1 / (1 + noise / signal)^2.
    Source: Khrapov et al. 2024, arXiv 2403.16728.
    """
    if schedule == "exponential":
        return delta**t
    if schedule == "snr":
        return (1 - delta) / (1 + snr.rsqrt()).square() + delta
    return torch.full_like(t, delta)


def masked_mean(error: Tensor, mask: Tensor, outside: float, by_area: bool) -> Tensor:
    """[B], the mean of each sample's error where `mask` is 1; where it is 0 it has the weight `outside`.

    mask: as `error`, with one channel. by_area: divided by the mean weight, so that a small mask makes no small loss.
    """
    weight = mask if outside == 0 else outside + (1 - outside) * mask
    mean = (error * weight).flatten(1).mean(1)
    if not by_area:
        return mean
    # one cell at least: a mask without any white is a loss of 0, not 0 / 0
    return mean / weight.flatten(1).mean(1).clamp(min=1 / weight[0].numel())


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """values [B] in the shape that multiplies each sample of `like`."""
    return values.view(-1, *[1] * (like.dim() - 1))


def _scaled(error: Tensor, share: float) -> Tensor:
    return error if share == 1 else error * share
