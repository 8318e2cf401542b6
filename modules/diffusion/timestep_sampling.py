"""The timestep distribution of a run, from its settings and the family's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from modules.diffusion.timesteps import (
    InverseCdf,
    ResolutionShift,
    ShiftLaw,
    TimestepDistribution,
    beta,
    cosmap,
    logit_normal,
    mode,
    sigmoid,
)

if TYPE_CHECKING:
    from modules.config.DiffusionConfig import DiffusionConfig


class NoisedFamily(Protocol):
    """What is needed of a family; Family and FamilyInfo fulfil it, whose fields these are."""

    @property
    def objective(self) -> str: ...
    @property
    def patch_size(self) -> int: ...
    @property
    def shift_law(self) -> ShiftLaw: ...


def timestep_distribution(
    family: NoisedFamily, scheduler_config: Mapping[str, Any], settings: DiffusionConfig
) -> TimestepDistribution:
    """The distribution that timesteps are drawn from. scheduler_config: of the base model; it has the default shift."""
    if settings.timesteps == "family":
        inverse_cdf, shift = _own(family, scheduler_config)
    else:
        inverse_cdf = _inverse_cdf(settings)
        by_resolution = settings.shift_by == "resolution"
        factor = settings.shift if settings.shift_by == "factor" else 1.0
        shift = _resolution_shift(family, scheduler_config) if by_resolution else factor
    low, high = settings.min_timestep / 1000, settings.max_timestep / 1000
    return TimestepDistribution(inverse_cdf, shift, low, high, family.patch_size)


def _own(
    family: NoisedFamily, scheduler_config: Mapping[str, Any]
) -> tuple[InverseCdf | None, float | ResolutionShift]:
    """The family's default: logit-normal with the sampling shift for flow models (Esser et al. 2024, section 3.1)."""
    if family.objective == "ddpm":
        return None, 1.0
    if scheduler_config.get("use_dynamic_shifting", False):
        return logit_normal(0.0, 1.0), _resolution_shift(family, scheduler_config)
    shifts = (scheduler_config.get(name) for name in ("flow_shift", "shift"))  # flow_shift: multistep schedulers
    return logit_normal(0.0, 1.0), next((shift for shift in shifts if shift is not None), 1.0)


def _inverse_cdf(settings: DiffusionConfig) -> InverseCdf | None:
    match settings.timesteps:
        case "logit_normal":
            return logit_normal(settings.logit_normal_mean, settings.logit_normal_std)
        case "sigmoid":
            return sigmoid(settings.sigmoid_slope, settings.sigmoid_centre)
        case "beta":
            return beta(settings.beta_alpha, settings.beta_beta)
        case "mode":
            return mode(settings.mode_scale)
        case "cosmap":
            return cosmap
    return None


def _resolution_shift(family: NoisedFamily, scheduler_config: Mapping[str, Any]) -> ResolutionShift:
    """The parameters in the scheduler's config, with the defaults of diffusers for those that it lacks."""
    default = ResolutionShift()
    if family.shift_law == "side":  # whose pipeline takes none of the parameters below
        return ResolutionShift(law="side", is_linear=scheduler_config.get("time_shift_type") == "linear")
    return ResolutionShift(
        scheduler_config.get("base_shift", default.base_shift),
        scheduler_config.get("max_shift", default.max_shift),
        scheduler_config.get("base_image_seq_len", default.base_tokens),
        scheduler_config.get("max_image_seq_len", default.max_tokens),
        family.shift_law,
    )
