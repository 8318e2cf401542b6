"""The timestep distribution of a run, from its settings and the family's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from modules.config.ResolutionShift import ResolutionShift, ShiftLaw
from modules.diffusion.timesteps import (
    InverseCdf,
    TimestepDistribution,
    beta,
    cosmap,
    logit_normal,
    mode,
    parabola,
    sigmoid,
    stretched_logit_normal,
)

if TYPE_CHECKING:
    from modules.config.DiffusionConfig import DiffusionConfig
    from modules.config.TrainingTimesteps import TrainingTimesteps


class NoisedFamily(Protocol):
    """What is needed of a family; Family and FamilyInfo fulfil it, whose fields these are."""

    @property
    def objective(self) -> str: ...
    @property
    def patch_size(self) -> int: ...
    @property
    def shift_law(self) -> ShiftLaw: ...
    @property
    def training_timesteps(self) -> TrainingTimesteps | None: ...


def timestep_distribution(
    family: NoisedFamily, scheduler_config: Mapping[str, Any], settings: DiffusionConfig
) -> TimestepDistribution:
    """The distribution of the timesteps in training. scheduler_config: of the base model; it has the sampling shift."""
    low, high = settings.min_timestep / 1000, settings.max_timestep / 1000
    if settings.timesteps == "trained" and (trained := family.training_timesteps) is not None:
        return replace(_trained(trained), low=low, high=high, patch_size=family.patch_size)
    if settings.timesteps in ("trained", "family"):
        inverse_cdf, shift = _own(family, scheduler_config)
    else:
        inverse_cdf = _inverse_cdf(settings)
        by_resolution = settings.shift_by == "resolution"
        factor = settings.shift if settings.shift_by == "factor" else 1.0
        shift = _resolution_shift(family, scheduler_config) if by_resolution else factor
    return TimestepDistribution(inverse_cdf, shift, low, high, family.patch_size)


def _trained(trained: TrainingTimesteps) -> TimestepDistribution:
    if trained.uniform_share:
        stretched = stretched_logit_normal(trained.std, trained.uniform_share)
        return TimestepDistribution(shift=trained.shift, shifted_inverse_cdf=stretched)
    inverse_cdf = parabola(*trained.parabola) if trained.parabola else logit_normal(0.0, trained.std)
    return TimestepDistribution(inverse_cdf, trained.shift)


def _own(
    family: NoisedFamily, scheduler_config: Mapping[str, Any]
) -> tuple[InverseCdf | None, float | ResolutionShift]:
    """Logit-normal with the sampling shift for flow models (Esser et al. 2024, section 3.1), uniform for others."""
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
