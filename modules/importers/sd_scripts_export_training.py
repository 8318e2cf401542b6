"""How settings of rates, schedule, noise, loss and what happens when become sd-scripts' arguments."""

from __future__ import annotations

from typing import Any

from modules.config.describe import value_at
from modules.importers.sd_scripts_training import SCHEDULES
from modules.importers.SdScriptsArguments import SdScriptsArguments, full_path

LOSSES = {"mse": "l2", "mae": "l1", "huber": "huber", "smooth_l1": "smooth_l1"}
_RATES = ("learning_rate_te1", "learning_rate_te2", "learning_rate_te3")


def export_same(export: SdScriptsArguments) -> None:
    """The settings that the table takes as they are, or by the names of their choices."""
    for name, setting in export.program.settings.items():
        if setting.by or not setting.here or "[]" in setting.here:
            continue
        value = export.active(setting.here)
        if setting.values:
            value = next((theirs for theirs, here in setting.values.items() if here == value), None)
            value = {"true": True, "false": False}.get(str(value), value)
        export.put(name, value)


def export_length(export: SdScriptsArguments) -> None:
    """How long the run is, what it is called, and its seed."""
    config = export.config
    if config.max_steps:
        export.put("max_train_steps", config.max_steps)
    else:
        export.put("max_train_epochs", config.epochs)
    export.put("seed", config.seed)
    export.put("output_dir", full_path(config.workspace_dir))
    export.put("output_name", config.output.name)
    loggers = [name for name, is_on in (("tensorboard", config.tensorboard), ("wandb", config.wandb.enabled)) if is_on]
    export.put("log_with", "all" if len(loggers) == 2 else loggers[0] if loggers else None)
    export.put("logging_dir", full_path(f"{config.workspace_dir}/logs") if config.tensorboard else None)
    export.put("log_tracker_name", export.active("wandb.project") if config.wandb.enabled else None)


def export_intervals(export: SdScriptsArguments) -> None:
    """When models, states, samples and validations are made. States are made with the models there."""
    output, backup = export.config.output, export.config.backup
    _put_interval(export, "output", "save")
    _put_interval(export, "sampling", "sample")
    _put_interval(export, "validation", "validate")
    if output.unit in ("steps", "epochs") and backup.unit == output.unit:
        export.put("save_state", True)
        _put_kept(export, backup.keep, "_state")
    if output.unit in ("steps", "epochs") and output.keep:
        _put_kept(export, output.keep, "")


def _put_interval(export: SdScriptsArguments, section: str, verb: str) -> None:
    interval = getattr(export.config, section)
    if interval.unit in ("steps", "epochs") and interval.every > 0:
        export.put(f"{verb}_every_n_{interval.unit}", max(1, round(interval.every)))


def _put_kept(export: SdScriptsArguments, keep: int, ending: str) -> None:
    """How many are kept. In steps, the scripts also keep the one that is so many steps old."""
    output = export.config.output
    if output.unit == "epochs":
        export.put(f"save_last_n_epochs{ending}", keep)
    else:
        export.put(f"save_last_n_steps{ending}", (keep - 1) * max(1, round(output.every)))


def export_rates(export: SdScriptsArguments) -> None:
    """Which parts train, at which rates."""
    config = export.config
    export.put("learning_rate", config.optimizer.learning_rate)
    if not export.method.chooses_parts:
        return
    export.put("unet_lr", export.active("denoiser.learning_rate"))
    trains_text = config.text_encoder.train
    if export.method.trains_adapters:
        export.put("network_train_unet_only", not trains_text)
        export.put("network_train_text_encoder_only", trains_text and not config.denoiser.train)
    else:
        export.put("train_text_encoder", trains_text)
        export.put("stop_text_encoder_training", _last_step_of_text(export))
    rates = export.active("text_encoder.learning_rates") or []
    one = export.active("text_encoder.learning_rate")
    if rates or one is not None:
        export.put("text_encoder_lr", [*rates] or [one])
    if one is not None and not rates:
        export.put("learning_rate_te", one)
        rates = [one] * len(export.family.text_encoders)
    for name, rate in zip(_RATES, rates, strict=False):
        export.put(name, rate)


def _last_step_of_text(export: SdScriptsArguments) -> int | None:
    part = export.config.text_encoder
    if not part.train:
        return -1
    return round(part.stop_after) if part.stop_unit == "steps" and part.stop_after >= 1 else None


def export_schedule(export: SdScriptsArguments) -> None:
    """The schedule; constant if there is nothing like it."""
    schedule = export.config.schedule
    name = next((theirs for theirs, here in SCHEDULES.items() if here == schedule.name), "constant")
    if name == "constant" and schedule.warmup:
        name = "constant_with_warmup"  # the other one ignores it
    final = export.active("schedule.final_share")
    if name == "cosine" and final:
        name = "cosine_with_min_lr"
    export.put("lr_scheduler", name)
    if name in ("cosine_with_min_lr", "warmup_stable_decay"):
        export.put("lr_scheduler_min_lr_ratio", final)
    export.put("lr_warmup_steps", _duration(schedule.warmup))
    export.put("lr_decay_steps", _duration(export.active("schedule.decay") or 0.0))


def _duration(time: float) -> float:
    """A fraction of all steps, or a number of them, which has to be an integer there."""
    return round(time) if time >= 1 else time


def export_noise(export: SdScriptsArguments) -> None:
    """Noise and the range of timesteps."""
    noise = export.config.diffusion
    export.put("noise_offset", noise.offset_noise or None)
    if noise.offset_noise:
        export.put("noise_offset_random_strength", noise.offset_noise_random)
        export.put("adaptive_noise_scale", noise.offset_noise_adaptive or None)
    export.put("multires_noise_iterations", noise.multires_noise_iterations or None)
    if noise.multires_noise_iterations:
        export.put("multires_noise_discount", noise.multires_noise_discount)
    export.put("ip_noise_gamma", noise.input_perturbation or None)
    export.put("min_timestep", noise.min_timestep or None)
    export.put("max_timestep", noise.max_timestep if noise.max_timestep < 1000 else None)


def export_timesteps(export: SdScriptsArguments) -> None:
    """How timesteps are drawn. Models that aren't flow models have a single way there."""
    if not export.is_flow:
        return
    for name, value in _timesteps(export).items():
        export.put(name, value)


def _timesteps(export: SdScriptsArguments) -> dict[str, Any]:
    noise = export.config.diffusion
    if noise.timesteps in ("trained", "family"):
        return dict(export.facts["timesteps"])
    shift = noise.shift if noise.shift_by == "factor" else 1.0
    density: dict[str, Any] = {}
    if noise.timesteps == "mode":
        density = {"weighting_scheme": "mode", "mode_scale": noise.mode_scale}
    elif noise.timesteps == "logit_normal":
        density = {"weighting_scheme": "logit_normal", "logit_mean": noise.logit_normal_mean}
        density["logit_std"] = noise.logit_normal_std
    if not export.takes("timestep_sampling"):  # Stable Diffusion 3, the only one that counts from image to noise
        return {**density, "training_shift": shift}
    if noise.timesteps == "logit_normal" and noise.logit_normal_mean == 0:
        by_resolution = export.facts.get("by_resolution") if noise.shift_by == "resolution" else None
        sampling = by_resolution or ("sigmoid" if shift == 1 else "shift")
        return {"timestep_sampling": sampling, "sigmoid_scale": noise.logit_normal_std, "discrete_flow_shift": shift}
    if not density and shift == 1:
        return {"timestep_sampling": "uniform"}
    if "logit_mean" in density:
        density["logit_mean"] *= -1
    return {"timestep_sampling": "sigma", **density, "discrete_flow_shift": shift}


def export_loss(export: SdScriptsArguments) -> None:
    """The loss, its weights by timestep, and masks."""
    loss = export.config.loss
    largest = max(LOSSES, key=lambda name: value_at(loss, name))
    export.put("loss_type", LOSSES[largest])
    if largest in ("huber", "smooth_l1"):
        export.put("huber_c", loss.huber_delta)
        export.put("huber_schedule", loss.huber_schedule)
    export.put("masked_loss", export.active("loss.masked_training"))
    if not export.is_flow:
        export.put("min_snr_gamma", loss.snr_gamma if loss.weighting == "min_snr_gamma" else None)
        export.put("debiased_estimation_loss", loss.weighting == "debiased")
    elif "weighting_scheme" not in export.arguments:  # which may choose the timesteps already
        if export.takes("training_shift"):  # the loss of the image, which is that of the velocity times sigma squared
            export.put("weighting_scheme", {"constant": "sigma_sqrt", "cosmap": "cosmap"}.get(loss.weighting))
        elif not export.takes("model_prediction_type") and loss.weighting in ("sigma_sqrt", "cosmap"):
            export.put("weighting_scheme", loss.weighting)  # where there are several, raw ignores it


def export_embedding(export: SdScriptsArguments) -> None:
    """The new word; the scripts train a single one."""
    if not export.method.trains_words or not export.config.embeddings:
        return
    word = export.config.embeddings[0]
    export.put("token_string", word.placeholder)
    export.put("num_vectors_per_token", word.vectors)
    export.put("init_word", word.initial_text)
