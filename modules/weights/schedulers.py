"""The noise schedule of a base model, as its settings or a single file change it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from modules.weights.errors import WeightsError
from modules.weights.libraries import import_diffusers
from modules.weights.safe import read_header
from modules.weights.stated_prediction import changes_by_file, files_with_denoiser

if TYPE_CHECKING:
    from modules.config.ModelConfig import ModelConfig
    from modules.families.Family import Family


def adapted_scheduler(scheduler, family: Family, config: ModelConfig):
    """Applies the settings' prediction type and noise schedule, for training, sampling and the saved model."""
    if family.objective != "ddpm":
        return scheduler
    if config.prediction_type != "auto":
        scheduler = type(scheduler).from_config(scheduler.config, prediction_type=config.prediction_type)
    return _with_zero_terminal_snr(scheduler) if config.zero_terminal_snr else scheduler


def scheduler_by_files(scheduler, family: Family, config: ModelConfig):
    """The scheduler, changed as its family and the single files that the denoiser comes from say."""
    if family.undistilled and config.denoiser:
        return type(scheduler).from_config(scheduler.config, **family.undistilled.schedule)
    if family.objective != "ddpm":
        return scheduler
    if family.plain_noise_schedule:
        scheduler = _without_snr_shift(scheduler)
    changes: dict[str, Any] = {}
    for _, path in files_with_denoiser(config):
        changes |= changes_by_file(read_header(path))
    return type(scheduler).from_config(scheduler.config, **changes) if changes else scheduler


def _without_snr_shift(scheduler):
    """A DDIMScheduler in place of one of CogVideoX; the others don't shift."""
    if "snr_shift_scale" not in scheduler.config:
        return scheduler
    dropped = ("_class_name", "_use_default_values", "snr_shift_scale")  # the two classes have other defaults
    config = {name: value for name, value in scheduler.config.items() if name not in dropped}
    return import_diffusers().DDIMScheduler.from_config(config)


def _with_zero_terminal_snr(scheduler):
    """Lin et al. 2023, arXiv 2305.08891: the last timestep is pure noise, and sampling starts there."""
    if scheduler.config.prediction_type == "epsilon":
        raise WeightsError.at(
            "model.zero_terminal_snr",
            ": this base model predicts epsilon, which contains no information about the "
            "image at pure noise; set model.prediction_type to v_prediction, or turn it off.",
        )
    taken = inspect.signature(type(scheduler).__init__).parameters
    options = {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
    if "rescale_betas_zero_snr" in taken:
        return type(scheduler).from_config(scheduler.config, **options)
    if "clip_sample" not in scheduler.config:
        options["clip_sample"] = False  # DDIM's default clips to [-1, 1], which is for pixels
    return import_diffusers().DDIMScheduler.from_config(scheduler.config, **options)
