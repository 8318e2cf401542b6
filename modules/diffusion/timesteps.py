"""Where between data and noise samples are trained: distributions of timesteps as functions of a uniform draw.

Each is an inverse CDF, so that the timestep of a sample stays a hash of what it is for, as the draw is. A place t is
in [0, 1]: 0 is data, 1 is noise; a model of T timesteps is trained at floor(T t). Computed on the CPU, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

InverseCdf = Callable[[float], float]


@dataclass(frozen=True)
class ResolutionShift:
    """Numbers of a model whose shift grows with the size of its pictures; the defaults are FLUX's.

    The logarithm of the shift is a straight line through (base_tokens, base_shift) and (max_tokens, max_shift).
    """

    base_shift: float = 0.5
    max_shift: float = 1.15
    base_tokens: int = 256
    max_tokens: int = 4096


@dataclass(frozen=True)
class TimestepDistribution:
    """The places of samples: a distribution, moved towards the noise by a shift, pressed into a range.

    inverse_cdf: of the distribution; None is uniform.
    shift: a factor, or the numbers from which it follows for a picture; 1 shifts nothing.
    low, high: the range, within [0, 1].
    patch_size: latent cells along each side of a token, which are counted for the shift by the picture's size.
    """

    inverse_cdf: InverseCdf | None = None
    shift: float | ResolutionShift = 1.0
    low: float = 0.0
    high: float = 1.0
    patch_size: int = 2

    def at(self, u: float, latent_shape: Sequence[int]) -> float:
        """The place for a uniform draw `u` in [0, 1). latent_shape: (C, H, W) of the sample's latents."""
        t = self.inverse_cdf(u) if self.inverse_cdf else u
        shift = self.shift
        if isinstance(shift, ResolutionShift):
            shift = resolution_shift(math.prod(latent_shape[1:]) // self.patch_size**2, shift)
        return self.low + (self.high - self.low) * shifted(t, shift)


def logit_normal(mean: float, std: float) -> InverseCdf:
    """1 / (1 + exp(-x)) of a normal x: most samples in the middle.

    Source: Esser et al. 2024, arXiv 2403.03206, section 3.1.
    """
    normal = NormalDist(mean, std)

    def inverse_cdf(u: float) -> float:
        # the draws have 53 bits: 0 stands for the lowest of them, not for minus infinity
        x = normal.inv_cdf(max(u, 2.0**-54))
        return 1 / (1 + math.exp(-x)) if x > -700 else 0.0

    return inverse_cdf


def sigmoid(slope: float, centre: float) -> InverseCdf:
    """The density rises (slope > 0) or falls (< 0) as 1 / (1 + exp(-slope (t - centre))); slope 0 is uniform.

    The integral of a sigmoid is the softplus, whose inverse is log(exp(y) - 1).
    """

    def inverse_cdf(u: float) -> float:
        if slope == 0:
            return u
        start, end = _softplus(-slope * centre), _softplus(slope * (1 - centre))
        y = start + u * (end - start)
        return min(max(centre + (y + math.log(-math.expm1(-y))) / slope, 0.0), 1.0)

    return inverse_cdf


def beta(alpha: float, beta: float) -> InverseCdf:
    """The beta distribution: alpha > 1 leaves out the data's end, beta > 1 the noise's; (1, 1) is uniform."""
    from scipy.special import betaincinv

    return lambda u: float(betaincinv(alpha, beta, u))


def shifted(t: float, shift: float) -> float:
    """The place whose noise-to-data ratio t / (1 - t) is `shift` times that of `t`, in [0, 1] as `t`.

    Source: Esser et al. 2024, arXiv 2403.03206, eq. 23, with shift = sqrt(m / n).
    """
    return t if shift == 1 else shift * t / (1 + (shift - 1) * t)


def resolution_shift(num_tokens: int, base: ResolutionShift) -> float:
    """The shift for a picture of `num_tokens` latent patches (after packing, not pixels), > 0.

    Raises ValueError if num_tokens < 1.
    Source: calculate_shift and time_shift of diffusers' FLUX, after Esser et al. 2024, section 5.3.2: larger pictures
    need more noise to lose the same information.
    """
    if num_tokens < 1:
        raise ValueError(f"a picture of {num_tokens} tokens")
    slope = (base.max_shift - base.base_shift) / (base.max_tokens - base.base_tokens)
    return math.exp(base.base_shift + slope * (num_tokens - base.base_tokens))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
