"""Training objectives: how clean latents are noised and what the denoiser must predict.

Legend: B batch; the other axes of latents are arbitrary. `u` is [B], the noise level of each sample in [0, 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from modules.diffusion.losses import per_sample


class Noised(NamedTuple):
    """One noised batch."""

    latents: Tensor  # in the shape of the clean latents
    timestep: Tensor  # [B], on the denoiser's scale (integers 0..999 for DDPM, 0..1000 for flow)
    target: Tensor  # what the denoiser should predict, in the shape of the clean latents


class Objective(Protocol):
    def noise(self, clean: Tensor, noise: Tensor, u: Tensor) -> Noised: ...

    def timestep(self, u: Tensor) -> Tensor:
        """[B], the `Noised.timestep` for these noise levels."""

    def snr(self, u: Tensor) -> Tensor:
        """[B], signal^2 / noise^2 for these noise levels, at least in float32."""

    def step(self, latents: Tensor, prediction: Tensor, u: Tensor, lower: Tensor) -> Tensor:
        """The latents at the noise levels `lower`, by one step from `u` without new noise. prediction: for them."""


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
        timestep = self.timestep(u)
        alpha = per_sample(self.alphas_cumprod.to(clean.device, clean.dtype)[timestep], clean)
        signal, sigma = alpha.sqrt(), (1 - alpha).sqrt()
        noised = signal * clean + sigma * noise
        target = noise if self.prediction_type == "epsilon" else signal * noise - sigma * clean
        return Noised(noised, timestep, target)

    def snr(self, u: Tensor) -> Tensor:
        alpha = self.alphas_cumprod.to(u.device, torch.promote_types(u.dtype, torch.float32))[self.timestep(u)]
        return alpha / (1 - alpha)

    def step(self, latents: Tensor, prediction: Tensor, u: Tensor, lower: Tensor) -> Tensor:
        """DDIM (Song et al. 2021, arXiv 2010.02502, equation 12 with sigma 0)."""
        alphas = self.alphas_cumprod.to(latents.device, latents.dtype)
        before, after = (per_sample(alphas[self.timestep(level)], latents) for level in (u, lower))
        signal, sigma = before.sqrt(), (1 - before).sqrt()
        if self.prediction_type == "epsilon":
            noise, clean = prediction, (latents - sigma * prediction) / signal
        else:
            noise, clean = signal * prediction + sigma * latents, signal * latents - sigma * prediction
        return after.sqrt() * clean + (1 - after).sqrt() * noise

    def offset_share(self, u: Tensor) -> Tensor:
        """[B], the factor of offset noise at these noise levels, which grows from almost 0 to 1.

        Source: Kutsuna 2024, arXiv 2412.03134, algorithm 1 (balanced phi and psi) and equation 22, whose sum is a
        product that telescopes: psi_t is proportional to sqrt(1 - a_t) / a_t, a being `alphas_cumprod`. psi_T is 1.
        """
        alphas = self.alphas_cumprod.to(u.device, torch.promote_types(u.dtype, torch.float32))
        psi = (1 - alphas).sqrt() / alphas
        return (psi / psi[-1])[self.timestep(u)]

    def timestep(self, u: Tensor) -> Tensor:
        last = len(self.alphas_cumprod) - 1
        # clamped, because a value just below 1 may have been rounded to 1 in float32
        return (u * len(self.alphas_cumprod)).long().clamp(max=last)


@dataclass(frozen=True)
class Flow:
    """Rectified flow: a straight path from data to noise, whose velocity is predicted.

    x_t = (1 - sigma) x0 + sigma noise, target noise - x0, timestep 1000 sigma.
    Source: Esser et al. 2024, arXiv 2403.03206, section 2.
    """

    def noise(self, clean: Tensor, noise: Tensor, u: Tensor) -> Noised:
        sigma = per_sample(u.to(clean.dtype), clean)
        # the timestep keeps the precision of u: in bf16, neighboring timesteps near 1000 collapse
        return Noised((1 - sigma) * clean + sigma * noise, self.timestep(u), noise - clean)

    def timestep(self, u: Tensor) -> Tensor:
        return u * 1000.0

    def snr(self, u: Tensor) -> Tensor:
        return ((1 - u) / u).square()

    def step(self, latents: Tensor, prediction: Tensor, u: Tensor, lower: Tensor) -> Tensor:
        """One of Euler's steps along the velocity."""
        return latents + per_sample((lower - u).to(latents.dtype), latents) * prediction
