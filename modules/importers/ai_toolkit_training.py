"""How ai-toolkit's settings of the length, noise and loss, and of what happens when, become settings of Chorus."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

from modules.config.other_programs import ForeignSetting
from modules.importers.AiToolkitTranslation import AiToolkitTranslation
from modules.importers.attention import take_attention
from modules.importers.intervals import take_interval

MANY_EPOCHS = 100_000  # so that the steps decide
_HUBER_DELTA = 0.01


def _take_length(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    names = ("train.gradient_accumulation", "train.gradient_accumulation_steps")
    if t["train.gradient_accumulation_steps"] < 0:
        t.leave("gradients are not summed over an epoch here: set gradient_accumulation_steps", names[1])
    t.take("gradient_accumulation_steps", max(1, t[names[0]]) * t.batches, *names)
    steps, why = t.steps("train.steps")
    t.take("max_steps", steps, "train.steps", why=why)
    t.take("epochs", MANY_EPOCHS, "train.steps")


def _take_seed(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    if t["training_seed"] is None:
        t.take("seed", 42, "training_seed", why="a new one is drawn for each run there")
    else:
        t.take("seed", t["training_seed"] % 2**31, "training_seed")


def _take_timesteps(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    kind, favored = t["train.timestep_type"], t["train.content_or_style"]
    if not t.is_flow:
        kind = "linear"
    elif t["train.linear_timesteps"] or t["train.linear_timesteps2"]:
        kind = "linear"
        t.leave("Chorus has no such weights of timesteps: all count the same", "train.linear_timesteps")
    names = ("train.timestep_type", "train.content_or_style")
    if favored in ("content", "style"):
        why = "" if kind == "linear" else "as with timestep_type linear; Chorus does not combine the two"
        t.take("diffusion.timesteps", "beta", *names, why=why)
        third = 1 / 3
        t.take("diffusion.beta_alpha", 1.0 if favored == "content" else third, "train.content_or_style")
        t.take("diffusion.beta_beta", third if favored == "content" else 1.0, "train.content_or_style")
        if t.is_flow:
            t.take("diffusion.shift_by", "none", *names)
        return
    _take_kind(t, kind, names)


def _take_kind(t: AiToolkitTranslation, kind: str, names: tuple[str, ...]) -> None:
    shifted = kind in t.program.facts["shifted"]
    if kind == "sigmoid":
        t.take("diffusion.timesteps", "logit_normal", *names)
        t.take("diffusion.logit_normal_mean", 0.0, *names)
        t.take("diffusion.logit_normal_std", 1.0, *names)
    elif kind == "linear" or shifted:
        t.take("diffusion.timesteps", "uniform", *names)
    elif kind == "weighted":
        why = "Chorus has not the weights that ai-toolkit measured: all timesteps count the same"
        t.take("diffusion.timesteps", "uniform", *names, why=why)
    else:
        t.leave("Chorus has no such timesteps: they are drawn as the model's makers do", *names)
        t.take("diffusion.timesteps", "trained", *names, why="the nearest that Chorus has")
        return
    if not t.is_flow:
        return
    factor = t.program.facts["shifts"].get(t.family.name)
    if not shifted or factor == 1:
        t.take("diffusion.shift_by", "none", *names)
    elif factor is None:
        t.take("diffusion.shift_by", "resolution", *names)
    else:
        t.take("diffusion.shift_by", "factor", *names)
        t.take("diffusion.shift", factor, *names)


def _take_timestep_range(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    if t.draws_images:  # where it counts the steps of drawing
        return
    first, last = t["train.min_denoising_steps"], t["train.max_denoising_steps"]
    why = "counted from the noisiest timestep there"
    if t.is_flow and t["train.timestep_type"] not in ("linear", "weighted"):
        why += ", among those that timestep_type spreads"
    lowest = max(0, min(999, _timestep(t, 999 - last)))
    highest = max(1, min(1000, _timestep(t, 1000 - first)))
    if lowest >= highest:
        t.leave("no timestep is left between them: all are trained", "train.min_denoising_steps")
        lowest, highest = 0, 1000
    t.take("diffusion.min_timestep", lowest, "train.max_denoising_steps", why=why if lowest else "")
    t.take("diffusion.max_timestep", highest, "train.min_denoising_steps", why=why if highest < 1000 else "")


def _timestep(t: AiToolkitTranslation, place: int) -> int:
    """The timestep at a place among 1000 that are spread by timestep_type, of which the last is noise alone."""
    kind, share = t["train.timestep_type"], min(1.0, max(0.0, place / 1000))
    factor = t.program.facts["shifts"].get(t.family.name)
    if t.is_flow and kind == "sigmoid" and 0 < share < 1:
        share = 1 / (1 + math.exp(-NormalDist().inv_cdf(share)))
    elif t.is_flow and kind in t.program.facts["shifted"] and factor:
        share = factor * share / (1 + (factor - 1) * share)
    return round(1000 * share)


def _take_weighting(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    names = ("train.min_snr_gamma", "train.snr_gamma")
    if t.is_flow:
        if any(t[name] for name in names):
            t.leave("it is for models that predict noise", *names)
        return
    if t["train.snr_gamma"]:
        t.leave(
            "Chorus has min_snr_gamma, whose weights are at most 1: all timesteps count the same", "train.snr_gamma"
        )
    elif t["train.min_snr_gamma"]:
        t.take("loss.weighting", "min_snr_gamma", "train.min_snr_gamma")
        t.take("loss.snr_gamma", t["train.min_snr_gamma"], "train.min_snr_gamma")
        return
    t.take("loss.weighting", "constant", "train.min_snr_gamma")


def _take_loss(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    chosen = {"mse": "mse", "mae": "mae", "pseudo_huber": "huber"}.get(t["train.loss_type"])
    if chosen is None:
        t.leave("Chorus has no such loss: the squared error is used", "train.loss_type")
    weight = 1 / (2 * _HUBER_DELTA)
    for name in ("mse", "mae", "huber"):
        share = (weight if name == "huber" else 1.0) if name == (chosen or "mse") else 0.0
        why = "Chorus' Huber error is scaled by twice its threshold" if share == weight else ""
        t.take(f"loss.{name}", share, "train.loss_type", why=why)
    if chosen == "huber":
        t.take("loss.huber_delta", _HUBER_DELTA, "train.loss_type")
        t.take("loss.huber_schedule", "constant", "train.loss_type")


def _take_mask_prior(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    if t["train.inverted_mask_prior"] and t.method.keeps_old_model:
        name = "train.inverted_mask_prior_multiplier"
        t.take("loss.masked_prior_preservation_weight", t[name], "train.inverted_mask_prior", name)
    elif t["train.inverted_mask_prior"]:
        t.leave("it needs a LoRA here", "train.inverted_mask_prior")


def _take_preservation(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    name = "train.diff_output_preservation"
    if t[name] and not t.method.trains_adapters:
        t.leave("it needs a LoRA", name)
    elif t[name]:
        t.take("loss.output_preservation", True, name)
        t.take("loss.output_preservation_weight", t[f"{name}_multiplier"], f"{name}_multiplier")


def _take_blank_preservation(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    name = "train.blank_prompt_preservation"
    if t[name] and not t.method.trains_adapters:
        t.leave("it needs a LoRA", name)
    elif t[name]:
        t.take("loss.blank_preservation", True, name)
        t.take("loss.blank_preservation_weight", t[f"{name}_multiplier"], f"{name}_multiplier")


def _take_guidance(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    if t.family.takes_guidance:
        names = ("train.cfg_scale", "train.bypass_guidance_embedding")
        why = "the guidance is left out there, which Chorus can't" if t[names[1]] else ""
        t.take("diffusion.guidance", t["train.cfg_scale"], *names, why=why)


def _take_saving(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    every, why = t.steps("save.save_every")
    take_interval(t, "output", every, "steps", ("save.save_every",), why)
    keep = t["save.max_step_saves_to_keep"]
    t.take("output.keep", keep if keep > 0 else None, "save.max_step_saves_to_keep")
    take_interval(t, "backup", every, "steps", ("save.save_every",), why or "its optimizer.pt is part of a backup here")
    t.take("backup.keep", 1, "save.save_every")


def _take_save_dtype(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    here = t.program.facts["dtypes"].get(t["save.dtype"].lower())
    if here is None:
        t.leave("Chorus saves no such precision: bfloat16 is used", "save.dtype")
    t.take("output.dtype", here or "bfloat16", "save.dtype")


def _take_save_format(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    if not t.method.has_formats:
        return
    if t["save.save_format"] == "diffusers":
        t.take("output.format", "diffusers", "save.save_format")
    elif t.method.trains_weights and t.family.single_file is None:
        t.take("output.format", "diffusers", "save.save_format", why="this model is not written as one file here")
    elif t.method.trains_weights:
        t.take("output.format", "single_file", "save.save_format")
    else:
        t.take("output.format", "both", "save.save_format", why="every format that programs read this model's LoRAs in")


def _take_sampling(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    is_on = not t["train.disable_sampling"]
    every, why = t.steps("sample.sample_every")
    names = ("sample.sample_every", "train.disable_sampling")
    take_interval(t, "sampling", every if is_on else 0, "steps", names, why)
    t.take("sampling.at_start", is_on and not t["train.skip_first_sample"], "train.skip_first_sample")
    t.take("sampling.at_end", is_on, "train.disable_sampling")
    if t["sample.sampler"] == "euler":
        t.take("sampling.sampler", "euler", "sample.sampler")
    else:
        t.take("sampling.sampler", "model", "sample.sampler")


def _take_project(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    if t["logging.use_wandb"]:
        t.take("wandb.project", t["logging.project_name"], "logging.project_name")


def _take_device(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    kind, _, number = t["device"].partition(":")
    if kind == setting.default and number.isdecimal() and len(number) < 4:
        t.take("device_indexes", [int(number)], "device")
    elif kind not in (setting.default, "mps") or number:
        t.leave("Chorus trains on the GPUs of device_indexes, or on the CPU if there is none", "device")


def _take_attention(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    if t.is_given("train.attention_backend") and t["train.attention_backend"] != "native":
        take_attention(t, t["train.attention_backend"], "train.attention_backend")
    elif t.is_given("train.xformers") and t["train.xformers"]:
        take_attention(t, "xformers", "train.xformers")


OF_TRAINING: dict[str, Any] = {
    "attention": _take_attention,
    "length": _take_length,
    "seed": _take_seed,
    "timesteps": _take_timesteps,
    "timestep_range": _take_timestep_range,
    "weighting": _take_weighting,
    "loss": _take_loss,
    "mask_prior": _take_mask_prior,
    "preservation": _take_preservation,
    "blank_preservation": _take_blank_preservation,
    "guidance": _take_guidance,
    "saving": _take_saving,
    "save_dtype": _take_save_dtype,
    "save_format": _take_save_format,
    "sampling": _take_sampling,
    "project": _take_project,
    "device": _take_device,
}
