"""Timestep distributions, as functions of a uniform draw.

Each distribution is an inverse CDF, so that timesteps are determined by the hash-based draws (data/draws.py). A
normalized timestep t is in [0, 1]: 0 is data, 1 is noise; a model with T timesteps is trained at floor(T t). Everything
is computed on the CPU, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

from modules.config.ResolutionShift import ResolutionShift

InverseCdf = Callable[[float], float]
ShiftedInverseCdf = Callable[[float, float], float]  # of the draw and the shift


@dataclass(frozen=True)
class TimestepDistribution:
    """A distribution of normalized timesteps, shifted towards noise and then scaled to a range.

    inverse_cdf: of the distribution; None is uniform.
    shift: a factor, or the parameters to compute it from the image size; 1 means no shift.
    low, high: the range, within [0, 1].
    patch_size: latent cells along each side of a token, for a shift by resolution.
    shifted_inverse_cdf: of a distribution that a shift changes otherwise than by `shifted`; `inverse_cdf` is then None.
    boundary, share_above: if not None, so many of the draws get a timestep of at least `boundary`, the others one below
        it; on each side, the distribution is what it would be without. Without effect if all are on one side.
    """

    inverse_cdf: InverseCdf | None = None
    shift: float | ResolutionShift = 1.0
    low: float = 0.0
    high: float = 1.0
    patch_size: int = 2
    shifted_inverse_cdf: ShiftedInverseCdf | None = None
    boundary: float = 0.0
    share_above: float | None = None

    def at(self, u: float, latent_shape: Sequence[int]) -> float:
        """The normalized timestep for a uniform draw `u` in [0, 1). latent_shape: (C, H, W) of the sample's latents."""
        shift = self.shift
        if isinstance(shift, ResolutionShift):
            axes = latent_shape[-2:] if shift.law == "side" else latent_shape[1:]
            shift = resolution_shift(math.prod(axes) // self.patch_size**2, shift)
        if self.share_above is not None:
            u = _divided(u, _draw_of(self, shift), 1 - self.share_above)
        return self.with_shift(u, shift)

    def with_shift(self, u: float, shift: float) -> float:
        """The normalized timestep for a draw, whatever its share, with this shift."""
        if self.shifted_inverse_cdf:
            t = self.shifted_inverse_cdf(u, shift)
        else:
            t = shifted(self.inverse_cdf(u) if self.inverse_cdf else u, shift)
        return self.low + (self.high - self.low) * t


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


def parabola(height: float, curvature: float) -> InverseCdf:
    """A density proportional to height - curvature (t - 1/2)^2, for 0 < curvature <= 4 height.

    With x = t - 1/2, the integral of the density is a cubic in x, which x = r sin(a) turns into a multiple of sin(3 a).
    """
    radius = 2 * math.sqrt(height / curvature)
    area = height - curvature / 12

    def inverse_cdf(u: float) -> float:
        sine = 3 * (u - 0.5) * area / (height * radius)
        return min(max(0.5 + radius * math.sin(math.asin(sine) / 3), 0.0), 1.0)

    return inverse_cdf


def stretched_logit_normal(std: float, uniform_share: float) -> ShiftedInverseCdf:
    """A shifted logit-normal distribution, stretched to the whole range, mixed with a uniform one.

    Its quantiles 0.005 and 0.999 are moved to 0 and 1. What lies above 1 then becomes 1, and what lies below 0.001 is
    mirrored there, so that neither end is empty however large the shift is.
    Source: Lightricks/LTX-2, packages/ltx-trainer/src/ltx_trainer/timestep_samplers.py.
    """
    normal = NormalDist(0.0, std)
    ends = [math.exp(z * std) for z in (-2.5758, 3.0902)]  # noise-to-data ratios before the shift
    least = 1e-3

    def inverse_cdf(u: float, shift: float) -> float:
        # in terms of the share of data, 1 - t, which keeps its digits where t is almost 1
        start, end = (1 / (1 + shift * ratio) for ratio in ends)

        def below(t: float) -> float:
            data = start + t * (end - start)
            return normal.cdf(math.log((1 - data) / data / shift)) if data < 1 else 0.0

        def cdf(t: float) -> float:
            own = below(t) - below(2 * least - t)
            return (1 - uniform_share) * own + uniform_share * (t - least) / (1 - least)

        return least_at_which(lambda t: cdf(t) > u, least, 1.0)

    return inverse_cdf


def least_at_which(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The least number from `low` to `high` at which `holds` is true, by bisection; `high` if there is none.

    holds: false up to some number and true from there on.
    """
    if holds(low):
        return low
    while low < (middle := (low + high) / 2) < high:
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def shifted(t: float, shift: float) -> float:
    """The normalized timestep whose noise-to-data ratio t / (1 - t) is `shift` times that of `t`.

    Source: Esser et al. 2024, arXiv 2403.03206, eq. 23, with shift = sqrt(m / n).
    """
    return t if shift == 1 else min(shift * t / (1 + (shift - 1) * t), 1.0)  # which rounding can exceed


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


@lru_cache(maxsize=256)  # of the sizes of a run
def _draw_of(timesteps: TimestepDistribution, shift: float) -> float:
    """The draw that gives the boundary between experts; 0 or 1 if all timesteps are on one side of it."""
    return least_at_which(lambda u: timesteps.with_shift(u, shift) >= timesteps.boundary, 0.0, 1.0)


def _divided(u: float, draw: float, share_below: float) -> float:
    """Maps draws below `share_below` to those below `draw`, and the others to the others."""
    if not 0 < draw < 1:
        return u
    if u < share_below:
        return min(u / share_below * draw, math.nextafter(draw, 0))
    return min(draw + (u - share_below) / (1 - share_below) * (1 - draw), 1 - 2.0**-53)


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
