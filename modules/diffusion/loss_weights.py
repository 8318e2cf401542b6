"""Loss weights that depend on the timestep.

snr: [B], the signal-to-noise ratio of each sample, signal^2 / noise^2.
sigma: [B], the noise level of rectified flow.
Tensors or NumPy arrays: the window draws these weights and does without torch.
For v-prediction, weights for epsilon are multiplied by snr / (snr + 1), which converts the squared error of v to that
of the implied epsilon (Salimans & Ho 2022, arXiv 2202.00512, appendix D).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from modules.config.LossConfig import LossConfig

Array = TypeVar("Array", "Tensor", "np.ndarray")
PredictionType = Literal["epsilon", "v_prediction"]

MIN_SIGMA = 1e-3  # the lowest of 1000 timesteps; 1 / sigma^2 would grow without bound


def timestep_weight(
    config: LossConfig, u: Array, snr: Callable[[Array], Array], prediction_type: PredictionType
) -> Array | None:
    """The weights that `config` gives samples at the noise levels `u`, [B]; None for a constant.

    snr: its `snr` at noise levels; called for the weights of models that are not flow models alone.
    """
    match config.weighting:
        case "min_snr_gamma":
            return min_snr_gamma(snr(u), config.snr_gamma, prediction_type)
        case "debiased":
            if prediction_type == "v_prediction" and config.debiased_v != "paper":
                return debiased_of_v(snr(u), config.debiased_v)
            return debiased_estimation(snr(u), prediction_type)
        case "p2":
            return p2(snr(u), config.p2_gamma, prediction_type)
        case "sigma":
            return u
        case "sigma_sqrt":
            return sigma_sqrt(u)
        case "cosmap":
            return cosmap(u)
    return None


def min_snr_gamma(snr: Array, gamma: float, prediction_type: PredictionType) -> Array:
    """min(snr, gamma) / snr: keeps samples with little noise from dominating the loss.

    Source: Hang et al. 2023, arXiv 2303.09556; with v the divisor is snr + 1.
    """
    divisor = snr if prediction_type == "epsilon" else snr + 1
    return snr.clip(max=gamma) / divisor


def debiased_estimation(snr: Array, prediction_type: PredictionType) -> Array:
    """1 / sqrt(snr): gives samples with much noise more weight.

    Source: Yu et al. 2023, arXiv 2310.08442; with v it is sqrt(snr) / (snr + 1).
    """
    return snr**-0.5 if prediction_type == "epsilon" else snr**0.5 / (snr + 1)


def debiased_of_v(snr: Array, like: Literal["onetrainer", "kohya"]) -> Array:
    """What other programs call debiased estimation for v-prediction: 1 / sqrt(snr + 1), or 1 / (snr + 1)."""
    return (snr + 1) ** -0.5 if like == "onetrainer" else 1 / (snr + 1)


def p2(snr: Array, gamma: float, prediction_type: PredictionType) -> Array:
    """1 / (1 + snr)^gamma: gives samples with little noise less weight, since what they teach can't be seen.

    Source: Choi et al. 2022, arXiv 2204.00227, eq. 8 with k = 1. OneTrainer's form for v is 1 / (2 + snr)^gamma.
    """
    weight = (1 + snr) ** -gamma
    return weight if prediction_type == "epsilon" else weight * snr / (snr + 1)


def sigma_sqrt(sigma: Array) -> Array:
    """1 / sigma^2: gives samples with little noise more weight, as diffusers' training of Stable Diffusion 3 does."""
    return sigma.clip(min=MIN_SIGMA) ** -2.0


def cosmap(sigma: Array) -> Array:
    """2 / (pi (1 - 2 sigma + 2 sigma^2)): gives medium noise levels more weight.

    Source: Esser et al. 2024, arXiv 2403.03206, section 3.1.
    """
    return 2 / (math.pi * (1 - 2 * sigma + 2 * sigma**2))
