"""Loss weights that depend on the timestep.

snr: [B], the signal-to-noise ratio of each sample, signal^2 / noise^2.
sigma: [B], the noise level of rectified flow.
For v-prediction, weights for epsilon are multiplied by snr / (snr + 1), which converts the squared error of v to that
of the implied epsilon (Salimans & Ho 2022, arXiv 2202.00512, appendix D).
"""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

MIN_SIGMA = 1e-3  # the lowest of 1000 timesteps; 1 / sigma^2 would grow without bound


def min_snr_gamma(snr: Tensor, gamma: float, prediction_type: Literal["epsilon", "v_prediction"]) -> Tensor:
    """min(snr, gamma) / snr: keeps samples with little noise from dominating the loss.

    Source: Hang et al. 2023, arXiv 2303.09556; with v the divisor is snr + 1.
    """
    divisor = snr if prediction_type == "epsilon" else snr + 1
    return snr.clamp(max=gamma) / divisor


def debiased_estimation(snr: Tensor, prediction_type: Literal["epsilon", "v_prediction"]) -> Tensor:
    """1 / sqrt(snr): gives samples with much noise more weight.

    Source: Yu et al. 2023, arXiv 2310.08442; with v it is sqrt(snr) / (snr + 1).
    """
    return snr.rsqrt() if prediction_type == "epsilon" else snr.sqrt() / (snr + 1)


def debiased_of_v(snr: Tensor, like: Literal["onetrainer", "kohya"]) -> Tensor:
    """What other programs call debiased estimation for v-prediction: 1 / sqrt(snr + 1), or 1 / (snr + 1)."""
    return (snr + 1).rsqrt() if like == "onetrainer" else 1 / (snr + 1)


def p2(snr: Tensor, gamma: float, prediction_type: Literal["epsilon", "v_prediction"]) -> Tensor:
    """1 / (1 + snr)^gamma: gives samples with little noise less weight, since what they teach can't be seen.

    Source: Choi et al. 2022, arXiv 2204.00227, eq. 8 with k = 1. OneTrainer's form for v is 1 / (2 + snr)^gamma.
    """
    weight = (1 + snr) ** -gamma
    return weight if prediction_type == "epsilon" else weight * snr / (snr + 1)


def sigma_sqrt(sigma: Tensor) -> Tensor:
    """1 / sigma^2: gives samples with little noise more weight, as diffusers' training of Stable Diffusion 3 does."""
    return sigma.clamp(min=MIN_SIGMA) ** -2.0


def cosmap(sigma: Tensor) -> Tensor:
    """2 / (pi (1 - 2 sigma + 2 sigma^2)): gives medium noise levels more weight.

    Source: Esser et al. 2024, arXiv 2403.03206, section 3.1.
    """
    return 2 / (math.pi * (1 - 2 * sigma + 2 * sigma**2))
