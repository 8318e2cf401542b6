"""How SimpleTuner's settings of the length, noise and loss, and of what happens when, become settings of Chorus."""

from __future__ import annotations

import math
from typing import Any

from modules.config.other_programs import ForeignSetting
from modules.importers.intervals import take_interval
from modules.importers.SimpleTunerTranslation import SimpleTunerTranslation

MANY_EPOCHS = 100_000  # so that the steps decide


def _take_length(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    steps = t["max_train_steps"] or 0
    if steps > 0:
        t.take("max_steps", steps, "max_train_steps")
        t.take("epochs", MANY_EPOCHS, "max_train_steps")
    else:
        t.take("epochs", max(1, t["num_train_epochs"]), "num_train_epochs")


def _take_seed(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    seed = t["seed"]
    if seed is None or seed in (0, -1):
        t.take("seed", 42, "seed", why="a new one is drawn for each run there")
    else:
        t.take("seed", seed % 2**31, "seed")


def _take_timesteps(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    if not t.is_flow:
        t.take("diffusion.timesteps", "uniform", "flow_use_uniform_schedule")
        return
    if t.model in t.program.facts["own_timesteps"]:
        _leave_timesteps(t)
        return
    if t["flow_use_uniform_schedule"]:
        t.take("diffusion.timesteps", "uniform", "flow_use_uniform_schedule")
    elif t["flow_use_beta_schedule"]:
        t.take("diffusion.timesteps", "beta", "flow_use_beta_schedule")
        t.take("diffusion.beta_alpha", t["flow_beta_schedule_alpha"], "flow_beta_schedule_alpha")
        t.take("diffusion.beta_beta", t["flow_beta_schedule_beta"], "flow_beta_schedule_beta")
    else:
        if t["flux_fast_schedule"]:
            t.leave("most of its timesteps are pure noise, which Chorus lacks", "flux_fast_schedule")
        t.take("diffusion.timesteps", "logit_normal", "flow_sigmoid_scale")
        t.take("diffusion.logit_normal_mean", 0.0, "flow_sigmoid_scale")
        t.take("diffusion.logit_normal_std", t["flow_sigmoid_scale"], "flow_sigmoid_scale")
    shift = t["flow_schedule_shift"]
    if t["flow_schedule_auto_shift"]:
        t.take("diffusion.shift_by", "resolution", "flow_schedule_auto_shift")
    elif shift > 0 and shift != 1:
        t.take("diffusion.shift_by", "factor", "flow_schedule_shift")
        t.take("diffusion.shift", shift, "flow_schedule_shift")
    else:
        t.take("diffusion.shift_by", "none", "flow_schedule_shift")


def _leave_timesteps(t: SimpleTunerTranslation) -> None:
    """Those of a model that has a law of its own, which leaves the settings of all others without effect."""
    names = [one.name for one in t.program.settings.values() if one.by == "timesteps" and t.is_given(one.name)]
    if names:
        t.leave("SimpleTuner ignores it for this model, whose makers' distribution it uses", *names)
    t.take("diffusion.timesteps", "trained", "model_family")


def _take_bias(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    names = ("timestep_bias_strategy", "timestep_bias_begin", "timestep_bias_end", "timestep_bias_multiplier")
    if t[names[0]].lower() != "none" and not t.is_flow:
        why = "some timesteps are drawn more often there: set diffusion.min_timestep and diffusion.max_timestep"
        t.leave(why, *names)


def _take_weighting(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    gamma = t["snr_gamma"] or 0
    if t.is_flow:
        if gamma:
            t.leave("it is for models that predict noise", "snr_gamma")
        return
    t.take("loss.weighting", "min_snr_gamma" if gamma > 0 else "constant", "snr_gamma")
    if gamma > 0:
        t.take("loss.snr_gamma", gamma, "snr_gamma")


def _take_loss(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    chosen = {"l2": "mse", "huber": "huber", "smooth_l1": "smooth_l1"}.get(t["loss_type"].lower())
    if chosen is None:
        t.leave("Chorus has no such loss: the squared error is used", "loss_type")
    for name in ("mse", "mae", "huber", "smooth_l1"):
        t.take(f"loss.{name}", 1.0 if name == (chosen or "mse") else 0.0, "loss_type")
    if chosen in ("huber", "smooth_l1"):
        t.take("loss.huber_delta", t["huber_c"], "huber_c")
        t.take("loss.huber_schedule", t["huber_schedule"], "huber_schedule")


def _take_noise(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    names = ("noise_offset", "noise_offset_probability", "offset_noise")
    if not t["offset_noise"] or t.is_flow:
        if t["offset_noise"]:
            t.leave("SimpleTuner adds none for this model", "offset_noise")
        t.take("diffusion.offset_noise", 0.0, "offset_noise")
        return
    offset, chance = t["noise_offset"], min(1.0, max(0.0, t["noise_offset_probability"]))
    why = "" if chance == 1 else "in some batches there, in all here: times the root of the probability"
    t.take("diffusion.offset_noise", offset * math.sqrt(chance), *names[:2], why=why)


def _take_guidance(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    if not t.family.takes_guidance:
        return
    is_drawn = t["flux_guidance_mode"] != "constant"
    why = "drawn for each sample between two values there" if is_drawn else ""
    t.take("diffusion.guidance", t["flux_guidance_value"], "flux_guidance_value", "flux_guidance_mode", why=why)


def _take_ema(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    every, decay = max(1, t["ema_update_interval"]), t["ema_decay"]
    if every == 1 or not 0 < decay < 1:
        t.take("ema.decay", decay, "ema_decay")
    else:
        why = f"of each step here, and of every {every} steps there"
        t.take("ema.decay", decay ** (1 / every), "ema_decay", "ema_update_interval", why=why)
    t.take("ema.update_every", every, "ema_update_interval")
    t.take("ema.start_after", t["ema_warmup_steps"], "ema_warmup_steps")
    both = t["use_ema"] and t["ema_validation"] == "comparison"
    why = "SimpleTuner also makes samples of the weights as trained" if both else ""
    t.take("ema.sample", t["ema_validation"] != "none", "ema_validation", why=why)


def _interval(t: SimpleTunerTranslation, steps: str, epochs: str) -> tuple[float, str, str]:
    """How often, in what unit, and by which setting; that of epochs counts only if the other is absent."""
    if (t[epochs] or 0) > 0 and not t.is_given(steps):
        return t[epochs], "epochs", epochs
    return t[steps] or 0, "steps", steps


def _take_saving(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    every, unit, name = _interval(t, "checkpoint_step_interval", "checkpoint_epoch_interval")
    limit = t["checkpoints_total_limit"]
    keep = limit if limit > 0 else 1000
    take_interval(t, "backup", every, unit, (name,))
    t.take("backup.keep", keep, "checkpoints_total_limit")
    take_interval(t, "output", every, unit, (name,))
    t.take("output.keep", limit if limit > 0 else None, "checkpoints_total_limit")
    if (t["checkpoint_epoch_interval"] or 0) > 0 and unit == "steps":
        t.leave("one interval here, that of the steps", "checkpoint_epoch_interval")


def _take_save_format(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    if not t.method.has_formats:
        return
    if t.method.trains_weights:
        t.take("output.format", "diffusers", "model_type")
    elif t["lora_format"] == "comfyui" or t["lora_type"].lower() == "lycoris":
        t.take("output.format", "both", "lora_format", why="every format that programs read this model's LoRAs in")
    else:
        t.take("output.format", "diffusers", "lora_format")


def _take_sampling(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    every, unit, name = _interval(t, "validation_step_interval", "validation_epoch_interval")
    is_on = not t["validation_disable"]
    take_interval(t, "sampling", every if is_on else 0, unit, (name, "validation_disable"))
    t.take("sampling.at_start", is_on and t["validation_on_startup"], "validation_on_startup")
    t.take("sampling.at_end", is_on, "validation_disable")
    chosen = t["validation_noise_scheduler"]
    t.take("sampling.sampler", "euler" if chosen == "euler" else "model", "validation_noise_scheduler")
    if chosen not in (None, "euler"):
        t.leave("the model's own is used", "validation_noise_scheduler")


def _take_validation(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    every, unit, name = _interval(t, "eval_steps_interval", "eval_epoch_interval")
    if every > 0:
        take_interval(t, "validation", every, unit, (name,))
        t.take("validation.timesteps", t["eval_timesteps"], "eval_timesteps")


def _take_tracking(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    chosen = {name.strip() for name in t["report_to"].lower().split(",")}
    is_on = bool(chosen & {"wandb", "all"})
    t.take("wandb.enabled", is_on, "report_to")
    t.take("tensorboard", bool(chosen & {"tensorboard", "all"}), "report_to")
    if is_on:
        t.take("wandb.project", t["tracker_project_name"], "tracker_project_name")
    if chosen - {"wandb", "tensorboard", "all", "none", ""}:
        t.leave("Chorus reports to TensorBoard, Weights & Biases and MLflow", "report_to")


def _take_devices(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    t.take("enable_multi_gpu", t["num_processes"] > 1 or t["num_machines"] > 1, "num_processes", "num_machines")
    if t["num_machines"] > 1:
        t.take("num_nodes", t["num_machines"], "num_machines")
        t.take("node_rank", t["machine_rank"], "machine_rank")
        t.take("master_addr", t["main_process_ip"], "main_process_ip")
    if t["fsdp_enable"]:
        t.take("distributed_strategy", "fsdp", "fsdp_enable")


OF_TRAINING: dict[str, Any] = {
    "length": _take_length,
    "seed": _take_seed,
    "timesteps": _take_timesteps,
    "bias": _take_bias,
    "weighting": _take_weighting,
    "loss": _take_loss,
    "noise": _take_noise,
    "guidance": _take_guidance,
    "ema": _take_ema,
    "saving": _take_saving,
    "save_format": _take_save_format,
    "sampling": _take_sampling,
    "validation": _take_validation,
    "tracking": _take_tracking,
    "devices": _take_devices,
}
