"""Timestep distributions, as functions of a uniform draw.

Each distribution is an inverse CDF, so that timesteps are determined by the hash-based draws (data/draws.py). A
normalized timestep t is in [0, 1]: 0 is data, 1 is noise; a model with T timesteps is trained at floor(T t). Everything
is computed on the CPU, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

InverseCdf = Callable[[float], float]
ShiftLaw = Literal["exponential", "root", "side"]


@dataclass(frozen=True)
class ResolutionShift:
    """Parameters of a shift that grows with the image size; the defaults are those of FLUX.

    law: "exponential" if the logarithm of the shift is linear in the number of tokens, through (base_tokens,
        base_shift) and (max_tokens, max_shift); "root" if the shift is
        base_shift + max_shift sqrt(tokens / base_tokens); "side" if it, or its logarithm, is sqrt(tokens / base_tokens)
        of a single frame.
    is_linear: whether the law "side" gives the shift itself.
    """

    base_shift: float = 0.5
    max_shift: float = 1.15
    base_tokens: int = 256
    max_tokens: int = 4096
    law: ShiftLaw = "exponential"
    is_linear: bool = False


@dataclass(frozen=True)
class TimestepDistribution:
    """A distribution of normalized timesteps, shifted towards noise and then scaled to a range.

    inverse_cdf: of the distribution; None is uniform.
    shift: a factor, or the parameters to compute it from the image size; 1 means no shift.
    low, high: the range, within [0, 1].
    patch_size: latent cells along each side of a token, for a shift by resolution.
    """

    inverse_cdf: InverseCdf | None = None
    shift: float | ResolutionShift = 1.0
    low: float = 0.0
    high: float = 1.0
    patch_size: int = 2

    def at(self, u: float, latent_shape: Sequence[int]) -> float:
        """The normalized timestep for a uniform draw `u` in [0, 1). latent_shape: (C, H, W) of the sample's latents."""
        t = self.inverse_cdf(u) if self.inverse_cdf else u
        shift = self.shift
        if isinstance(shift, ResolutionShift):
            axes = latent_shape[-2:] if shift.law == "side" else latent_shape[1:]
            shift = resolution_shift(math.prod(axes) // self.patch_size**2, shift)
        return self.low + (self.high - self.low) * shifted(t, shift)


def logit_normal(mean: float, std: float) -> InverseCdf:
    """1 / (1 + exp(-x)) of a normally distributed x: most samples have medium noise.

    Source: Esser et al. 2024, arXiv 2403.03206, section 3.1.
    """
    normal = NormalDist(mean, std)

    def inverse_cdf(u: float) -> float:
        # draws have 53 bits, so 0 stands for the smallest draw, not for minus infinity
        x = normal.inv_cdf(max(u, 2.0**-54))
        return 1 / (1 + math.exp(-x)) if x > -700 else 0.0

    return inverse_cdf


def sigmoid(slope: float, center: float) -> InverseCdf:
    """A density proportional to 1 / (1 + exp(-slope (t - center))), which is uniform for slope 0.

    The integral of the sigmoid is the softplus, whose inverse is log(exp(y) - 1).
    """

    def inverse_cdf(u: float) -> float:
        if slope == 0:
            return u
        start, end = _softplus(-slope * center), _softplus(slope * (1 - center))
        y = start + u * (end - start)
        return min(max(center + (y + math.log(-math.expm1(-y))) / slope, 0.0), 1.0)

    return inverse_cdf


def beta(alpha: float, beta: float) -> InverseCdf:
    """The beta distribution: alpha > 1 avoids the data end, beta > 1 the noise end; (1, 1) is uniform."""
    from scipy.special import betaincinv

    return lambda u: float(betaincinv(alpha, beta, u))


def mode(scale: float) -> InverseCdf:
    """Mode sampling with heavy tails: for `scale` above 0 medium noise is frequent, but the ends keep a density.

    Source: Esser et al. 2024, arXiv 2403.03206, eq. 20, with 1 - u for u, so that it increases with the draw; that
    takes a scale of -1 to 2 / (pi - 2).
    """
    return lambda u: u + scale * (u - math.sin(math.pi * u / 2) ** 2)


def cosmap(u: float) -> float:
    """The inverse CDF of CosMap: the timesteps whose log-SNR is distributed as with the cosine schedule.

    Source: Esser et al. 2024, arXiv 2403.03206, eq. 21.
    """
    return 1 - 1 / (math.tan(math.pi * u / 2) + 1)


def shifted(t: float, shift: float) -> float:
    """The normalized timestep whose noise-to-data ratio t / (1 - t) is `shift` times that of `t`.

    Source: Esser et al. 2024, arXiv 2403.03206, eq. 23, with shift = sqrt(m / n).
    """
    return t if shift == 1 else shift * t / (1 + (shift - 1) * t)


def resolution_shift(num_tokens: int, base: ResolutionShift) -> float:
    """The shift for an image of `num_tokens` latent patches (after packing, not pixels), > 0.

    Raises ValueError if num_tokens < 1.
    Source: calculate_shift and time_shift of diffusers' FLUX, its CogView4 and Qwen-Image-Layered for the square roots,
    after Esser et al. 2024, section 5.3.2: larger images need more noise to lose the same information.
    """
    if num_tokens < 1:
        raise ValueError(f"an image of {num_tokens} tokens")
    if base.law == "root":
        return base.base_shift + base.max_shift * math.sqrt(num_tokens / base.base_tokens)
    if base.law == "side":
        ratio = math.sqrt(num_tokens / base.base_tokens)
        return ratio if base.is_linear else math.exp(ratio)
    slope = (base.max_shift - base.base_shift) / (base.max_tokens - base.base_tokens)
    return math.exp(base.base_shift + slope * (num_tokens - base.base_tokens))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
