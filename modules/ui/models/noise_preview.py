"""How often each timestep is trained, and how much it counts, for the plots. No Tk, and no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from modules.config.clips import frames_in_pass, latent_frames
from modules.config.DiffusionConfig import DiffusionConfig
from modules.config.families import FamilyInfo, load_families
from modules.config.methods import facts_of
from modules.config.ModelConfig import ModelConfig
from modules.config.ResolutionShift import ResolutionShift
from modules.config.TrainConfig import TrainConfig
from modules.diffusion.loss_weights import timestep_weight
from modules.diffusion.timestep_sampling import timestep_distribution

NUM_BARS = 50
NUM_DRAWS = 5000
MAX_CONFIG_BYTES = 1 << 20
Schedule = Mapping[str, Any]


@dataclass(frozen=True)
class Bars:
    """What a plot shows. heights: NUM_BARS values from clean image to noise, the highest 1. note: below the plot."""

    heights: tuple[float, ...]
    note: str


def read_schedule(base: str) -> Schedule | None:
    """The scheduler's settings of a diffusers folder; None if they can't be known. Call it in a thread.

    They include the `boundary_ratio` of model_index.json: the normalized timestep between two experts.
    """
    folder = Path(os.path.expanduser(base))
    schedule = _read_json(folder / "scheduler" / "scheduler_config.json")
    boundary = (_read_json(folder / "model_index.json") or {}).get("boundary_ratio")
    return {**schedule, "boundary_ratio": boundary} if schedule and isinstance(boundary, float) else schedule


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(MAX_CONFIG_BYTES))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def timestep_bars(config: TrainConfig, schedule: Schedule | None) -> Bars | None:
    """How often each timestep is trained; None if the method knows no timesteps."""
    if not facts_of(config).uses_denoiser:
        return None
    family = load_families()[config.family]
    distribution = timestep_distribution(family, schedule or {}, config.diffusion)
    has_both = family.experts and config.denoiser.expert == "both"
    boundary = (schedule or {}).get("boundary_ratio", family.expert_boundary)
    if has_both:
        distribution = replace(distribution, boundary=boundary, share_above=config.diffusion.expert_share)
    side = max(1, config.data.resolution // family.align) * distribution.patch_size
    frames = frames_in_pass(config.data.frames, family) if family.frame_step else 1
    shape = (1, latent_frames(frames, family), side, side)
    draws = [distribution.at((number + 0.5) / NUM_DRAWS, shape) for number in range(NUM_DRAWS)]
    counts, _ = np.histogram(draws, bins=NUM_BARS, range=(0.0, 1.0))
    middle = round(1000 * float(np.median(draws)))
    notes = [f"Half of the samples have timesteps above {middle}."]
    if has_both:
        share = sum(t >= boundary for t in draws) / NUM_DRAWS
        notes.append(f"The expert for high noise has those from {1000 * boundary:g} on, {100 * share:.0f}%.")
    if schedule is None and _asks_base(config.diffusion, family) and family.objective == "flow":
        notes.append("Without the base model's own shift, which only a diffusers folder tells before the start.")
    elif isinstance(distribution.shift, ResolutionShift):
        kind = f"clips of {frames} frames and" if frames > 1 else "images of"
        notes.append(f"For {kind} {config.data.resolution} x {config.data.resolution} pixels.")
    return Bars(_to_one(counts), " ".join(notes))


def weight_bars(config: TrainConfig, schedule: Schedule | None) -> Bars | None:
    """How much the error at each timestep counts; None if all count alike, or the weighting is not for the family."""
    if not facts_of(config).uses_denoiser or config.loss.weighting == "constant":
        return None
    family = load_families()[config.family]
    if (family.objective == "flow") != (config.loss.weighting in ("sigma", "sigma_sqrt", "cosmap")):
        return None
    schedule = schedule or {}
    if family.plain_noise_schedule:
        schedule = {**schedule, "snr_shift_scale": None}
    if (kind := schedule.get("beta_schedule", "scaled_linear")) not in ("linear", "scaled_linear"):
        return Bars((), f"No preview for the base model's noise schedule, {kind}.")
    u = (np.arange(NUM_BARS) + 0.5) / NUM_BARS
    target = _prediction_type(config.model, schedule)
    weights = timestep_weight(config.loss, u, lambda u: _snr(u, config.model, schedule), target)
    assert weights is not None  # only for constant ones
    ratio = float(weights.max() / max(float(weights.min()), 1e-12))
    return Bars(_to_one(weights), f"The largest weight is {ratio:,.3g} times the smallest.")


def _asks_base(diffusion: DiffusionConfig, family: FamilyInfo) -> bool:
    """Whether the timesteps depend on the base model's scheduler."""
    match diffusion.timesteps:
        case "trained":
            return family.training_timesteps is None
        case "family":
            return True
    return diffusion.shift_by == "resolution"


def _to_one(values: np.ndarray) -> tuple[float, ...]:
    return tuple((values / max(float(values.max()), 1e-12)).tolist())


def _prediction_type(model: ModelConfig, schedule: Schedule) -> Literal["epsilon", "v_prediction"]:
    chosen = model.prediction_type
    own = schedule.get("prediction_type") if chosen == "auto" else chosen
    return "v_prediction" if own == "v_prediction" else "epsilon"


def _snr(u: np.ndarray, model: ModelConfig, schedule: Schedule) -> np.ndarray:
    """The signal-to-noise ratio at noise levels, with the numbers of Stable Diffusion where the schedule has none."""
    start, end = schedule.get("beta_start", 0.00085), schedule.get("beta_end", 0.012)
    num_steps, power = schedule.get("num_train_timesteps", 1000), 1
    if schedule.get("beta_schedule", "scaled_linear") == "scaled_linear":
        power = 2
    betas = np.linspace(start ** (1 / power), end ** (1 / power), num_steps) ** power
    alphas = np.cumprod(1 - betas)
    if model.zero_terminal_snr or schedule.get("rescale_betas_zero_snr"):  # Lin et al. 2023, arXiv 2305.08891
        roots = np.sqrt(alphas)
        alphas = ((roots - roots[-1]) * roots[0] / (roots[0] - roots[-1])) ** 2
        alphas[-1] = 2.0**-24  # as diffusers does
    if scale := schedule.get("snr_shift_scale"):
        alphas = alphas / (scale + (1 - scale) * alphas)
    chosen = alphas[np.minimum((u * num_steps).astype(int), num_steps - 1)]
    return chosen / (1 - chosen)
