"""How much each timestep counts in the loss.

snr: [B], the signal-to-noise ratio of each sample, signal^2 / noise^2. sigma: [B], the noise's share in rectified flow.
A weight of a model that predicts v is that of one that predicts epsilon, times snr / (snr + 1): the squared error of
the implied epsilon is that part of v's (Salimans & Ho 2022, arXiv 2202.00512, appendix D).
"""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

LOWEST_SIGMA = 1e-3  # the least noisy of 1000 timesteps; 1 / sigma^2 has no bound below it


def min_snr_gamma(snr: Tensor, gamma: float, prediction_type: Literal["epsilon", "v_prediction"]) -> Tensor:
    """min(snr, gamma) / snr: samples with little noise no longer outvote the others.

    Source: Hang et al. 2023, arXiv 2303.09556; with v the divisor is snr + 1.
    """
    divisor = snr if prediction_type == "epsilon" else snr + 1
    return snr.clamp(max=gamma) / divisor


def debiased_estimation(snr: Tensor, prediction_type: Literal["epsilon", "v_prediction"]) -> Tensor:
    """1 / sqrt(snr): samples with much noise count more.

    Source: Yu et al. 2023, arXiv 2310.08442; with v it is sqrt(snr) / (snr + 1).
    """
    return snr.rsqrt() if prediction_type == "epsilon" else snr.sqrt() / (snr + 1)


def sigma_sqrt(sigma: Tensor) -> Tensor:
    """1 / sigma^2: samples with little noise count more. As in diffusers' training of Stable Diffusion 3."""
    return sigma.clamp(min=LOWEST_SIGMA) ** -2.0


def cosmap(sigma: Tensor) -> Tensor:
    """2 / (pi (1 - 2 sigma + 2 sigma^2)): samples in the middle count more.

    Source: Esser et al. 2024, arXiv 2403.03206, section 3.1.
    """
    return 2 / (math.pi * (1 - 2 * sigma + 2 * sigma**2))
