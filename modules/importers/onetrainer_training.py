"""How OneTrainer's settings of the data, the noise, the loss and what happens when become those of Chorus."""

from __future__ import annotations

import re

from modules.config.other_programs import ForeignSetting
from modules.importers.intervals import optimizer_steps, take_interval
from modules.importers.onetrainer_data import (
    image_area_side,
    take_concept_file,
    take_concepts,
    take_sample_file,
    take_samples,
)
from modules.importers.onetrainer_model import family_of, text_encoders_of
from modules.importers.Translation import Conversion, Translation

MANY_BACKUPS = 1000  # no run makes more


def _interval(t: Translation, section: str, every_name: str, unit_name: str) -> None:
    every, unit, names = t[every_name], t[unit_name], (every_name, unit_name)
    accumulation = t["gradient_accumulation_steps"]
    if unit == "STEP" and accumulation > 1 and every > 0:
        why = "batches there, optimizer steps here"
        take_interval(t, section, optimizer_steps(every, accumulation), "steps", names, why)
    elif unit == "ALWAYS":
        take_interval(t, section, 1, "steps", names, "after every step")
    else:
        factor = {"SECOND": 1 / 60, "HOUR": 60}.get(unit, 1)
        units = {"EPOCH": "epochs", "STEP": "steps", "SECOND": "minutes", "MINUTE": "minutes", "HOUR": "minutes"}
        take_interval(t, section, every * factor, units.get(unit, "never"), names)


def _take_validation(t: Translation, setting: ForeignSetting) -> None:
    if t["validation"]:
        _interval(t, "validation", "validate_after", "validate_after_unit")
    else:
        t.take("validation.unit", "never", "validation")


def _take_sampling(t: Translation, setting: ForeignSetting) -> None:
    _interval(t, "sampling", "sample_after", "sample_after_unit")


def _take_backup(t: Translation, setting: ForeignSetting) -> None:
    _interval(t, "backup", "backup_after", "backup_after_unit")


def _take_saving(t: Translation, setting: ForeignSetting) -> None:
    _interval(t, "output", "save_every", "save_every_unit")


def _take_keep(t: Translation, setting: ForeignSetting) -> None:
    if t["rolling_backup"]:
        t.take("backup.keep", max(1, t["rolling_backup_count"]), "rolling_backup_count")
    else:
        why = "OneTrainer keeps all backups; set a number if the disk is small"
        t.take("backup.keep", MANY_BACKUPS, "rolling_backup", why=why)


def _take_tensorboard(t: Translation, setting: ForeignSetting) -> None:
    why = "" if t["tensorboard"] else "OneTrainer writes its logs in any case; this only starts TensorBoard there"
    t.take("tensorboard", True, "tensorboard", why=why)


def _take_device_indexes(t: Translation, setting: ForeignSetting) -> None:
    numbers = [int(number) for number in re.findall(r"\d{1,4}", t["device_indexes"])]
    t.take("device_indexes", numbers, "device_indexes")


def _take_concepts(t: Translation, setting: ForeignSetting) -> None:
    if t["concepts"]:
        take_concepts(t, t["concepts"])


def _take_concept_file(t: Translation, setting: ForeignSetting) -> None:
    if not t["concepts"]:
        take_concept_file(t, t["concept_file_name"])


def _take_samples(t: Translation, setting: ForeignSetting) -> None:
    if t["samples"]:
        take_samples(t, t["samples"], t["model_type"])


def _take_sample_file(t: Translation, setting: ForeignSetting) -> None:
    if not t["samples"]:
        take_sample_file(t, t["sample_definition_file_name"], t["model_type"])


def _take_resolution(t: Translation, setting: ForeignSetting) -> None:
    text = t["resolution"].replace(" ", "").lower()
    exact = [(int(width), int(height)) for width, height in re.findall(r"(\d{1,6})x(\d{1,6})", text)]
    sides = [int(side) for side in re.findall(r"(?<![\dx])\d{1,6}(?![\dx])", text)]
    if exact and not sides:
        width, height = exact[0]
        t.take("data.bucketing", False, "resolution")
        t.take("data.width", width, "resolution")
        t.take("data.height", height, "resolution")
        t.take("data.resolution", image_area_side(width, height), "resolution")
    else:
        t.take("data.bucketing", t["aspect_ratio_bucketing"], "aspect_ratio_bucketing")
        t.take("data.resolution", sides[0] if sides else 512, "resolution")
        if len(sides) > 1:
            t.take("data.resolutions", sides, "resolution")
    if len(exact) > (0 if sides else 1):
        t.leave("all images have one exact size here, or none", "resolution")
    t.take("data.bucket_step", 8 if family_of(t).single_file == "ldm" else 64, "aspect_ratio_bucketing")
    t.take("data.max_aspect", 4.0, "aspect_ratio_bucketing")


def _take_frames(t: Translation, setting: ForeignSetting) -> None:
    numbers = re.findall(r"\d{1,6}", t["frames"])
    if family_of(t).frame_step and numbers:
        t.take("data.frames", int(numbers[0]), "frames")


def _take_caption_dropout(t: Translation, setting: ForeignSetting) -> None:
    names = [f"{part}.dropout_probability" for part in text_encoders_of(t)]
    values = [t[name] for name in names]
    why = "the whole caption is left out here, for all text encoders at once" if any(values) and len(names) > 1 else ""
    t.take("data.caption_dropout", max(values), *names, why=why)


def _take_ema_decay(t: Translation, setting: ForeignSetting) -> None:
    every, decay = max(1, t["ema_update_step_interval"]), t["ema_decay"]
    if every == 1 or not 0 < decay < 1:
        t.take("ema.decay", decay, "ema_decay")
    else:
        why = f"of each step here, and of every {every} steps there"
        t.take("ema.decay", decay ** (1 / every), "ema_decay", "ema_update_step_interval", why=why)


def _take_ema_sampling(t: Translation, setting: ForeignSetting) -> None:
    is_on = t["ema"] != "OFF"
    why = "OneTrainer also makes samples of the weights as trained" if is_on and t["non_ema_sampling"] else ""
    t.take("ema.sample", True, "non_ema_sampling", why=why)


def _take_timestep_range(t: Translation, setting: ForeignSetting) -> None:
    low, high = (round(1000 * min(1.0, max(0.0, t[f"{end}_noising_strength"]))) for end in ("min", "max"))
    is_dynamic = t["dynamic_timestep_shifting"] and t["model_type"] in t.program.facts["dynamic_shifts"]
    shifts = t["timestep_shift"] != 1 or is_dynamic
    why = "OneTrainer shifts after it has pressed them into the range" if shifts and (low, high) != (0, 1000) else ""
    t.take("diffusion.min_timestep", min(999, low), "min_noising_strength", why=why)
    t.take("diffusion.max_timestep", max(1, high), "max_noising_strength", why=why)


def _take_timesteps(t: Translation, setting: ForeignSetting) -> None:
    weight, bias, chosen = t["noising_weight"], t["noising_bias"], t["timestep_distribution"]
    names = ("timestep_distribution", "noising_weight", "noising_bias")
    settings: dict[str, tuple[str, dict[str, float]]] = {
        "UNIFORM": ("uniform", {}),
        "SIGMOID": ("sigmoid", {"sigmoid_slope": weight, "sigmoid_centre": bias + 0.5}),
        "LOGIT_NORMAL": ("logit_normal", {"logit_normal_mean": bias, "logit_normal_std": weight + 1}),
        "HEAVY_TAIL": ("mode", {"mode_scale": weight}),
        "COS_MAP": ("cosmap", {}),
        "BETA": ("beta", {"beta_alpha": max(1e-4, weight), "beta_beta": max(1e-4, bias)}),
    }
    parabola = family_of(t).training_timesteps
    if chosen == "INVERTED_PARABOLA" and bias == 0 and parabola is not None and parabola.parabola == (2.0, weight):
        settings[chosen] = ("trained", {})
    elif chosen not in settings:
        t.leave("Chorus has no such distribution: uniform is used; choose another in diffusion.timesteps", *names)
    name, parameters = settings.get(chosen, settings["UNIFORM"])
    if chosen in settings:
        t.take("diffusion.timesteps", name, *names)
    else:
        t.result.values["diffusion.timesteps"] = name
    for path, value in parameters.items():
        t.take(f"diffusion.{path}", float(value), *names[1:])


def _take_shift(t: Translation, setting: ForeignSetting) -> None:
    names = ("timestep_shift", "dynamic_timestep_shifting")
    shifts_itself = t["model_type"] in t.program.facts["dynamic_shifts"]
    if t["dynamic_timestep_shifting"] and not shifts_itself:
        t.leave("OneTrainer ignores it for this model", "dynamic_timestep_shifting")
    if t["dynamic_timestep_shifting"] and shifts_itself:
        t.take("diffusion.shift_by", "resolution", *names)
    elif t["timestep_shift"] != 1:
        t.take("diffusion.shift_by", "factor", *names)
        t.take("diffusion.shift", t["timestep_shift"], "timestep_shift")
    else:
        t.take("diffusion.shift_by", "none", *names)


def _take_masked_training(t: Translation, setting: ForeignSetting) -> None:
    is_ignored = t["masked_training"] and family_of(t).takes_masks
    why = "the loss of inpainting models is that of the whole image there" if is_ignored else ""
    t.take("loss.masked_training", t["masked_training"] and not is_ignored, "masked_training", why=why)


def _take_unmasked_probability(t: Translation, setting: ForeignSetting) -> None:
    name = "unmasked_probability"
    if family_of(t).takes_masks and t["masked_training"]:
        why = "it replaces that fraction of the masks with white ones there; see data.inpainting_whole"
        t.leave(why, name)
    elif not t["masked_training"]:
        t.take("loss.unmasked_probability", t[name], name)
    else:
        t.take("loss.unmasked_probability", 0.0, name, why="OneTrainer uses it only for inpainting models")


def _take_unmasked_weight(t: Translation, setting: ForeignSetting) -> None:
    is_used = t["masked_training"] and t["unmasked_weight"] > 0
    why = "gray parts of a mask count a little more here; black and white ones the same" if is_used else ""
    t.take("loss.unmasked_weight", t["unmasked_weight"], "unmasked_weight", why=why)


def _take_huber(t: Translation, setting: ForeignSetting) -> None:
    strength, delta = t["huber_strength"], t["huber_delta"]
    if not strength:
        t.take("loss.huber", 0.0, "huber_strength")
        return
    why = "Chorus' Huber error is a smooth one, and twice as large where errors are small"
    t.take("loss.huber", strength / 2, "huber_strength", why=why)
    t.take("loss.huber_delta", min(1.0, delta), "huber_delta", why="at most 1 here" if delta > 1 else "")
    t.take("loss.huber_schedule", "constant", "huber_strength")


def _take_loss_weight(t: Translation, setting: ForeignSetting) -> None:
    choice, names = t.choice("loss_weight_fn"), ("loss_weight_fn", "loss_weight_strength")
    if choice is None:
        t.leave("Chorus has no such weight: all timesteps count the same", *names)
        choice = "constant"
        t.result.values["loss.weighting"] = choice
    else:
        t.take("loss.weighting", choice, "loss_weight_fn")
    predicts_v = t["force_v_prediction"] or t["rescale_noise_scheduler_to_zero_terminal_snr"]
    if choice == "min_snr_gamma":
        t.take("loss.snr_gamma", t["loss_weight_strength"], "loss_weight_strength")
    elif choice == "p2":
        why = "for v the formula here is another one than OneTrainer's" if predicts_v else ""
        t.take("loss.p2_gamma", t["loss_weight_strength"], "loss_weight_strength", why=why)
    elif choice == "debiased":
        t.take("loss.debiased_v", "onetrainer", "loss_weight_fn")


OF_TRAINING: dict[str, Conversion] = {
    "validation": _take_validation,
    "sampling": _take_sampling,
    "backup": _take_backup,
    "saving": _take_saving,
    "keep": _take_keep,
    "tensorboard": _take_tensorboard,
    "device_indexes": _take_device_indexes,
    "concepts": _take_concepts,
    "concept_file": _take_concept_file,
    "samples": _take_samples,
    "sample_file": _take_sample_file,
    "resolution": _take_resolution,
    "frames": _take_frames,
    "caption_dropout": _take_caption_dropout,
    "ema_decay": _take_ema_decay,
    "ema_sampling": _take_ema_sampling,
    "timestep_range": _take_timestep_range,
    "timesteps": _take_timesteps,
    "shift": _take_shift,
    "masked_training": _take_masked_training,
    "unmasked_probability": _take_unmasked_probability,
    "unmasked_weight": _take_unmasked_weight,
    "huber": _take_huber,
    "loss_weight": _take_loss_weight,
}
