"""How diffusion-pipe's settings of the length, noise and loss, and of what happens when, become settings of Chorus."""

from __future__ import annotations

from typing import Any

from modules.config.other_programs import ForeignSetting
from modules.importers.DiffusionPipeTranslation import DiffusionPipeTranslation
from modules.importers.intervals import take_interval

KEPT_BACKUPS = 1000  # all of them
QUANTILES = 9  # at which it evaluates


def _take_length(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    t.take("epochs", t["epochs"], "epochs")
    t.take("max_steps", t["max_steps"], "max_steps")


def _take_batch(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    names = ("micro_batch_size_per_gpu", "image_micro_batch_size_per_gpu")
    used = names[1] if not t.takes_clips and t.batch_sizes(names[1]) else names[0]
    several = len(set(t.batch_sizes(used))) > 1
    why = "the smallest, as all resolutions have the same batch size here" if several else ""
    t.take("batch_size", t.batch_size, used, why=why)
    if t.is_given(used) and not t.batch_sizes(used):
        t.leave("it is not a batch size; 1 is used", used)
    if t.takes_clips and t.is_given(names[1]):
        t.leave("images and videos have the same batch size here", names[1])


def _take_checkpointing(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    chosen = t["activation_checkpointing"]
    is_offloading = chosen == "unsloth"
    if not is_offloading and not isinstance(chosen, bool):
        t.leave("is neither true, false nor 'unsloth': activations are recomputed", "activation_checkpointing")
        chosen = True
    t.take("model.gradient_checkpointing", bool(chosen), "activation_checkpointing")
    t.take("model.activation_offloading", is_offloading, "activation_checkpointing")


def _take_swap(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    number = t["blocks_to_swap"]
    if number > 0 and t.method.trains_weights:
        t.leave("blocks that train can't be swapped", "blocks_to_swap")
    elif number > 0:
        t.take("model.blocks_to_swap", number, "blocks_to_swap")
        if not t["activation_checkpointing"]:
            t.take("model.gradient_checkpointing", True, "blocks_to_swap", why="swapping blocks needs it here")


def _take_timesteps(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    method, names = t["model.timestep_sample_method"], ("model.timestep_sample_method", "model.sigmoid_scale")
    if not t.is_flow:
        t.take("diffusion.timesteps", "uniform", "model.type")
        return
    if method not in ("logit_normal", "uniform"):
        t.leave("diffusion-pipe has no such timesteps: logit_normal is used", names[0])
    is_uniform = method == "uniform"
    t.take("diffusion.timesteps", "uniform" if is_uniform else "logit_normal", names[0])
    if not is_uniform:
        t.take("diffusion.logit_normal_mean", 0.0, names[0])
        t.take("diffusion.logit_normal_std", t["model.sigmoid_scale"], names[1])
    _take_shift(t)


def _take_shift(t: DiffusionPipeTranslation) -> None:
    names = ("model.shift", "model.flux_shift", "model.lumina_shift")
    if t["model.shift"]:
        t.take("diffusion.shift_by", "factor", "model.shift")
        t.take("diffusion.shift", t["model.shift"], "model.shift")
    elif t["model.flux_shift"] or t["model.lumina_shift"]:
        why = "from 0.5 for 256 tokens to 1.15 for 4096 there, and as the model's scheduler has it here"
        t.take("diffusion.shift_by", "resolution", *names[1:], why=why)
    else:
        t.take("diffusion.shift_by", "none", *names)


def _take_timestep_range(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    names = ("model.min_t", "model.max_t")
    if t.family.experts:
        if any(t.is_given(name) for name in names):
            t.leave("Chorus knows the timesteps of each of the two experts", *names)
        return
    lowest = max(0, min(999, round(1000 * min(1.0, max(0.0, t["model.min_t"])))))
    highest = max(1, min(1000, round(1000 * min(1.0, max(0.0, t["model.max_t"])))))
    if lowest >= highest:
        t.leave("no timestep is left between them: all are trained", *names)
        lowest, highest = 0, 1000
    why = "the distribution is pressed into the range, where what lies outside is left out there"
    t.take("diffusion.min_timestep", lowest, names[0], why=why if lowest else "")
    t.take("diffusion.max_timestep", highest, names[1], why=why if highest < 1000 else "")


def _take_first_frame(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    if t.family.takes("first_frame") and not t.family.fact("first_frame", "needed"):
        t.take("data.image_to_video", t["model.first_frame_conditioning_p"], "model.first_frame_conditioning_p")
    elif t["model.first_frame_conditioning_p"]:
        t.leave("this model always sees the first frame here, or never", "model.first_frame_conditioning_p")


def _take_weighting(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    names = ("model.min_snr_gamma", "model.debiased_estimation_loss")
    is_debiased = t.is_given(names[1])  # also if it is false
    if t.is_flow:
        if t[names[0]] or is_debiased:
            t.leave("it is for models that predict noise", *names)
    elif t[names[0]]:
        t.take("loss.weighting", "min_snr_gamma", names[0])
        t.take("loss.snr_gamma", t[names[0]], names[0])
        if is_debiased:
            t.leave("one weight of timesteps here, that of min_snr_gamma", names[1])
    elif is_debiased:
        why = "" if t[names[1]] else "diffusion-pipe turns it on with false, too"
        t.take("loss.weighting", "debiased", names[1], why=why)
        t.take("loss.debiased_v", "kohya", names[1])
    else:
        t.take("loss.weighting", "constant", *names)


def _take_loss(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    names = {"huber_delta": "huber", "smooth_l1_beta": "smooth_l1"}
    chosen = next((name for name in names if t[name]), "")
    for name in ("mse", "huber", "smooth_l1"):
        is_chosen = name == names.get(chosen, "mse")
        why = "a smooth curve of twice the size" if is_chosen and chosen else ""
        t.take(f"loss.{name}", (0.5 if chosen else 1.0) if is_chosen else 0.0, chosen or "huber_delta", why=why)
    if chosen:
        t.take("loss.huber_delta", t[chosen], chosen)
        t.take("loss.huber_schedule", "constant", chosen)
    if t["pseudo_huber_c"] is not None:
        t.leave("the diffusion-pipe of today ignores it, too: set loss.huber and loss.huber_delta", "pseudo_huber_c")


def _take_every(t: DiffusionPipeTranslation, section: str, prefix: str) -> None:
    """An interval: the first that the file has of epochs, steps and examples."""
    names = [f"{prefix}_every_n_{unit}" for unit in ("epochs", "steps", "examples")]
    given = [name for name in names if (t[name] or 0) > 0]
    if not given:
        take_interval(t, section, 0, "never", tuple(names))
        return
    if given[0] == names[2]:
        steps = max(1, t[names[2]] // t.examples_in_step)
        why = f"of {t.examples_in_step} images each on one GPU"
        take_interval(t, section, steps, "steps", (names[2],), why)
    else:
        take_interval(t, section, t[given[0]], "epochs" if given[0] == names[0] else "steps", (given[0],))
    if given[1:]:
        t.leave("one interval here, the other one", *given[1:])


def _take_saving(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    _take_every(t, "output", "save")
    t.take("output.keep", None, "save_every_n_epochs")
    if t.method.trains_adapters:
        why = "every format that programs read this model's LoRAs in"
        t.take("output.format", "both", "save_every_n_epochs", why=why)
    elif t.family.single_file is None:
        t.take("output.format", "diffusers", "save_every_n_epochs", why="this model is not written as one file here")
    else:
        t.take("output.format", "single_file", "save_every_n_epochs")


def _take_save_dtype(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    facts = t.program.facts
    held = t["adapter.dtype"] if t.method.trains_adapters else None
    chosen = t["save_dtype"] or held or t["model.dtype"]
    if chosen not in facts["dtypes"]:
        t.leave("Chorus saves no such precision: bfloat16 is used", "save_dtype")
    t.take("output.dtype", facts["dtypes"].get(chosen, "bfloat16"), "save_dtype", "adapter.dtype")


def _take_backup(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    minutes, epochs = "checkpoint_every_n_minutes", "checkpoint_every_n_epochs"
    name = minutes if t[minutes] else epochs
    take_interval(t, "backup", t[name] or 0, "minutes" if name == minutes else "epochs", (name,))
    if t[minutes] and t[epochs]:
        t.leave("one interval here, that of the minutes", epochs)
    t.take("backup.keep", KEPT_BACKUPS, name, why="all of them are kept there")
    t.take("backup.at_end", True, name)


def _take_evaluation(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    if not t["eval_datasets"]:
        t.take("validation.unit", "never", "eval_datasets")
        return
    _take_every(t, "validation", "eval")
    why = "evenly spaced, where they are quantiles of the timesteps that train there"
    t.take("validation.timesteps", QUANTILES, "eval_datasets", why=why)


def _take_project(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    if t["monitoring.enable_wandb"] and t["monitoring.wandb_tracker_name"]:
        t.take("wandb.project", t["monitoring.wandb_tracker_name"], "monitoring.wandb_tracker_name")


OF_TRAINING: dict[str, Any] = {
    "length": _take_length,
    "batch": _take_batch,
    "checkpointing": _take_checkpointing,
    "swap": _take_swap,
    "timesteps": _take_timesteps,
    "timestep_range": _take_timestep_range,
    "first_frame": _take_first_frame,
    "weighting": _take_weighting,
    "loss": _take_loss,
    "saving": _take_saving,
    "save_dtype": _take_save_dtype,
    "backup": _take_backup,
    "evaluation": _take_evaluation,
    "project": _take_project,
}
