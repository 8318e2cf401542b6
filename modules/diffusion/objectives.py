"""What a denoiser learns: how clean latents are noised and what it must predict.

Legend: B batch; latents have any further axes. `u` is a uniform draw in [0, 1) per sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor


class Noised(NamedTuple):
    """One noised batch."""

    latents: Tensor  # as the clean latents
    timestep: Tensor  # [B], on the denoiser's scale (0..999 whole for DDPM, 0..1000 for flow)
    target: Tensor  # what the denoiser should predict, as the clean latents


class Objective(Protocol):
    def noise(self, clean: Tensor, noise: Tensor, u: Tensor) -> Noised: ...


@dataclass(frozen=True)
class Ddpm:
    """Discrete diffusion with a fixed noise schedule.

    alphas_cumprod: [T], the cumulative product of 1 - beta, decreasing.
    prediction_type: "epsilon" predicts the noise (Ho et al. 2020, arXiv 2006.11239, eq. 14);
        "v_prediction" predicts sqrt(a) noise - sqrt(1 - a) x0 (Salimans & Ho 2022, arXiv 2202.00512, appendix D).
    """

    alphas_cumprod: Tensor
    prediction_type: Literal["epsilon", "v_prediction"]

    def noise(self, clean: Tensor, noise: Tensor, u: Tensor) -> Noised:
        last = len(self.alphas_cumprod) - 1
        # clamped: as a float32, a draw just below 1 may have been rounded to 1
        timestep = (u * len(self.alphas_cumprod)).long().clamp(max=last)
        alpha = _per_sample(self.alphas_cumprod.to(clean.device, clean.dtype)[timestep], clean)
        signal, sigma = alpha.sqrt(), (1 - alpha).sqrt()
        noised = signal * clean + sigma * noise
        target = noise if self.prediction_type == "epsilon" else signal * noise - sigma * clean
        return Noised(noised, timestep, target)


@dataclass(frozen=True)
class Flow:
    """Rectified flow: a straight path from data to noise; the velocity is predicted.

    x_t = (1 - sigma) x0 + sigma noise, target noise - x0, timestep 1000 sigma.
    Source: Esser et al. 2024, arXiv 2403.03206, section 2.
    """

    def noise(self, clean: Tensor, noise: Tensor, u: Tensor) -> Noised:
        sigma = _per_sample(u.to(clean.dtype), clean)
        # the timestep keeps u's precision: bf16 would collapse neighbouring timesteps near 1000
        return Noised((1 - sigma) * clean + sigma * noise, u * 1000.0, noise - clean)


def mse_per_sample(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean squared error of each sample, [B], in float32 at least."""
    dtype = torch.promote_types(prediction.dtype, torch.float32)
    return (prediction.to(dtype) - target.to(dtype)).square().flatten(1).mean(1)


def _per_sample(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.dim() - 1))
