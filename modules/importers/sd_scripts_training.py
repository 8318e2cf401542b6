"""How sd-scripts' arguments of rates, schedule, noise, loss and what happens when become settings of Chorus."""

from __future__ import annotations

import math
from typing import Any

from modules.config.other_programs import ForeignSetting
from modules.importers.foreign_values import read_as
from modules.importers.intervals import take_interval
from modules.importers.SdScriptsTranslation import SdScriptsTranslation

SCHEDULES = {
    "constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "cosine": "cosine",
    "cosine_with_restarts": "cosine_restarts", "polynomial": "polynomial", "inverse_sqrt": "inverse_sqrt",
    "cosine_with_min_lr": "cosine", "warmup_stable_decay": "wsd",
}  # fmt: skip
MANY_EPOCHS = 100_000  # so that the steps decide
DTYPES = {"float": "float32", "fp16": "float16", "bf16": "bfloat16", "no": "float32"}
FINDS_RATE = "Adafactor finds its own rate there unless relative_step=False is set, and this has no effect"
_RATES = ("learning_rate_te", "learning_rate_te1", "learning_rate_te2", "learning_rate_te3")


def _take_save_precision(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    chosen = t["save_precision"] or t["mixed_precision"]
    if chosen.startswith("fp8"):
        t.take("output.float8_denoiser", True, "save_precision", why="of the denoiser's matrices alone")
        chosen = "bf16"
    t.take("output.dtype", DTYPES.get(chosen, "float32"), "save_precision", "mixed_precision")


def _take_save_format(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    chosen = t["save_model_as"]
    if chosen.startswith("diffusers"):
        t.take("output.format", "diffusers", "save_model_as")
    else:
        why = "written as .safetensors" if chosen in ("ckpt", "pt") else ""
        t.take("output.format", "single_file", "save_model_as", why=why)


def _take_every(t: SdScriptsTranslation, section: str, in_steps: str, in_epochs: str) -> None:
    names = (in_steps, in_epochs)
    if t[in_epochs]:
        take_interval(t, section, t[in_epochs], "epochs", names)
        if t[in_steps]:
            t.leave("one interval here, that of the epochs", in_steps)
    else:
        take_interval(t, section, t[in_steps] or 0, "steps", names)


def _take_saving(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    _take_every(t, "output", "save_every_n_steps", "save_every_n_epochs")


def _take_sampling(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    _take_every(t, "sampling", "sample_every_n_steps", "sample_every_n_epochs")


def _take_validation(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    _take_every(t, "validation", "validate_every_n_steps", "validate_every_n_epochs")


def _last(t: SdScriptsTranslation, of_epochs: str, of_steps: str, every: str) -> tuple[int | None, str]:
    """How many of the last are kept, and the name that says so.

    That of steps is an age in steps, up to which they are kept: of those every 10 steps with an age of 20, the last 3.
    """
    if t[of_epochs]:
        return t[of_epochs], of_epochs
    age, between = t[of_steps], t[every]
    return (max(0, age) // between + 1 if age is not None and between else None), of_steps


def _take_keep(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    number, name = _last(t, "save_last_n_epochs", "save_last_n_steps", "save_every_n_steps")
    why = "models there are counted in steps, here one by one" if number and name.endswith("steps") else ""
    t.take("output.keep", number, name, why=why)


def _take_backup(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    if not t["save_state"]:
        t.take("backup.unit", "minutes", "save_state", why="backups change no result, and a run that dies loses little")
        return
    _take_every(t, "backup", "save_every_n_steps", "save_every_n_epochs")
    number, name = _last(t, "save_last_n_epochs_state", "save_last_n_steps_state", "save_every_n_steps")
    if number:
        t.take("backup.keep", number, name)


def _take_parts(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    if not t.method.chooses_parts:
        return
    trainable = set(t.method.trainable(t.family)) & set(t.family.text_encoders)
    names = (
        *("network_train_unet_only", "network_train_text_encoder_only"),
        *("train_text_encoder", "stop_text_encoder_training"),
    )
    if t.method.trains_adapters:
        rates = _encoder_rates(t)
        is_off = bool(rates) and not any(rates)
        text = not t["network_train_unet_only"] and not is_off and _count_of_trained(t) > 0
        if text and not trainable:
            t.leave("Chorus has no adapter for this model's text encoder, which is trained there", names[0])
        denoiser = not t["network_train_text_encoder_only"] and t["unet_lr"] != 0
    else:
        stops_at = t["stop_text_encoder_training"]
        is_off = stops_at is not None and stops_at < 0
        text = t["train_text_encoder"] or (t.script == "train_db.py" and not is_off)
        denoiser = True
    t.take("text_encoder.train", text and bool(trainable), *names)
    if (
        text
        and t.method.trains_weights
        and t.family.name in t.program.facts["trained_encoders"]
        and not t["train_t5xxl"]
    ):
        only = list(range(1, t.program.facts["trained_encoders"][t.family.name] + 1))
        t.take("text_encoder.only", only, "train_text_encoder", "train_t5xxl")
    t.take("denoiser.train", denoiser or not (text and trainable), *names)


def _count_of_trained(t: SdScriptsTranslation) -> int:
    """How many of the model's text encoders, from the first on, a LoRA trains."""
    return t.program.facts["trained_encoders"].get(t.family.name, len(t.family.text_encoders))


def _encoder_rates(t: SdScriptsTranslation) -> list[float]:
    """The rates of the text encoders that a LoRA trains; one number holds for all of them."""
    given = t["text_encoder_lr"]
    numbers = [_number(rate) for rate in (given if isinstance(given, list) else [given])]
    return [rate for rate in numbers if rate is not None][: max(1, _count_of_trained(t))]


def _number(value: Any) -> float | None:
    try:
        return None if value is None else read_as("float", value)
    except ValueError:
        return None


def _take_rates(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    if t.finds_rate:
        if rates := [name for name in ("unet_lr", "text_encoder_lr", *_RATES) if t[name]]:
            t.leave(FINDS_RATE, *rates)
        return
    unet = t["unet_lr"]
    if t["learning_rate"] <= 0 and unet:
        t.take("optimizer.learning_rate", unet, "unet_lr", why="the common rate has to be above 0 here")
    else:
        t.take("optimizer.learning_rate", t["learning_rate"], "learning_rate")
    if t.method.chooses_parts:
        _take_rates_of_parts(t)


def _take_rates_of_parts(t: SdScriptsTranslation) -> None:
    if t["unet_lr"]:
        t.take("denoiser.learning_rate", t["unet_lr"], "unet_lr")
    names = [name for name in _RATES if t[name] is not None]
    rates: list[float] = [t[name] for name in names] or _encoder_rates(t)
    names = names or ["text_encoder_lr"]
    if len(set(rates)) == 1 and rates[0] > 0:
        t.take("text_encoder.learning_rate", rates[0], *names)
    elif len(rates) > 1:
        trained = [number + 1 for number, rate in enumerate(rates) if rate > 0]
        if len(trained) == len(rates):
            t.take("text_encoder.learning_rates", rates, *names)
        elif trained:
            t.take("text_encoder.only", trained, *names)
            t.take("text_encoder.learning_rate", max(rates), *names)


def _take_text_encoder_stop(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    after = t["stop_text_encoder_training"]
    if after and after > 0 and t.method.trains_weights:
        t.take("text_encoder.stop_unit", "steps", "stop_text_encoder_training")
        t.take("text_encoder.stop_after", after, "stop_text_encoder_training")


def _take_warmup(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    if not t.finds_rate:
        t.take("schedule.warmup", t["lr_warmup_steps"], "lr_warmup_steps")
    elif t["lr_warmup_steps"]:
        t.leave(FINDS_RATE, "lr_warmup_steps")


def _take_schedule(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    chosen, custom = t["lr_scheduler"], t["lr_scheduler_type"]
    if t.finds_rate:
        t.result.values["schedule.name"] = "constant"
        if t.is_given("lr_scheduler") and chosen.lower() != "constant":
            t.leave(FINDS_RATE, "lr_scheduler")
        return
    name = SCHEDULES.get(chosen.lower())
    if custom or name is None:
        t.leave(
            "Chorus has no such schedule: the rate stays constant; choose another", "lr_scheduler", "lr_scheduler_type"
        )
        t.result.values["schedule.name"] = "constant"
        return
    t.take("schedule.name", name, "lr_scheduler")
    if t["lr_scheduler_min_lr_ratio"] is not None:
        t.take("schedule.final_share", t["lr_scheduler_min_lr_ratio"], "lr_scheduler_min_lr_ratio")
    if name == "wsd" and t["lr_decay_steps"]:
        t.take("schedule.decay", t["lr_decay_steps"], "lr_decay_steps")
    if t["lr_scheduler_args"]:
        t.leave("set them in the schedule's settings", "lr_scheduler_args")


def _take_length(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    if t["max_train_epochs"]:
        t.take("epochs", t["max_train_epochs"], "max_train_epochs")
        t.take("max_steps", None, "max_train_epochs")
    else:
        t.take("max_steps", t["max_train_steps"], "max_train_steps")
        t.take("epochs", MANY_EPOCHS, "max_train_steps")


def _take_activations(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    names = ("cpu_offload_checkpointing", "unsloth_offload_checkpointing")
    t.take("model.activation_offloading", any(t[name] for name in names), *names)


def _take_swap(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    names = ("blocks_to_swap", "double_blocks_to_swap", "single_blocks_to_swap")
    number = sum(t[name] or 0 for name in names)
    if number > 0:
        why = "" if t["gradient_checkpointing"] else "it needs model.gradient_checkpointing, too"
        t.take("model.blocks_to_swap", number, *names, why=why)


def _take_fused(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    names = ("fused_backward_pass", "fused_optimizer_groups", "blockwise_fused_optimizers")
    if any(t[name] for name in names):
        can = t.method.trains_weights and not t["max_grad_norm"] and t["gradient_accumulation_steps"] == 1
        if can:
            t.take("optimizer.fused_backward", True, *names)
        else:
            t.leave("here it needs max_grad_norm 0, no accumulation, one GPU and a full fine-tune", *names)


def _take_clip_skip(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    if t.family.skips_layers:
        t.take("model.clip_skip", t["clip_skip"] or 1, "clip_skip")


def _take_text_chunks(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    if t.family.takes_chunks:
        t.take("model.text_chunks", max(1, round((t["max_token_length"] or 75) / 75)), "max_token_length")


def _take_seed(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    if t["seed"] is None:
        t.take("seed", 42, "seed", why="a new one is drawn for each run there")
    else:
        t.take("seed", t["seed"] % 2**31, "seed")


def _take_noise(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    t.take("diffusion.offset_noise", t["noise_offset"] or 0.0, "noise_offset")
    if t["noise_offset_random_strength"]:
        why = "drawn for each sample, and once for a batch there"
        t.take("diffusion.offset_noise_random", True, "noise_offset_random_strength", why=why)
    if t["noise_offset"]:
        t.take("diffusion.offset_noise_adaptive", t["adaptive_noise_scale"] or 0.0, "adaptive_noise_scale")
    t.take("diffusion.multires_noise_iterations", t["multires_noise_iterations"] or 0, "multires_noise_iterations")
    if t["multires_noise_iterations"]:
        t.take("diffusion.multires_noise_discount", t["multires_noise_discount"], "multires_noise_discount")
    t.take("diffusion.input_perturbation", t["ip_noise_gamma"] or 0.0, "ip_noise_gamma")


def _take_timestep_range(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    t.take("diffusion.min_timestep", t["min_timestep"] or 0, "min_timestep")
    t.take("diffusion.max_timestep", t["max_timestep"] or 1000, "max_timestep")


def _take_loss_weight(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    names = ("min_snr_gamma", "debiased_estimation_loss", "scale_v_pred_loss_like_noise_pred")
    if t.is_flow:
        return
    if t["min_snr_gamma"]:
        t.take("loss.weighting", "min_snr_gamma", *names)
        t.take("loss.snr_gamma", t["min_snr_gamma"], "min_snr_gamma")
        if t["debiased_estimation_loss"] or t["scale_v_pred_loss_like_noise_pred"]:
            t.leave("one weight of timesteps here, that of min_snr_gamma", *names[1:])
    elif t["debiased_estimation_loss"]:
        t.take("loss.weighting", "debiased", *names)
        t.take("loss.debiased_v", "kohya", "debiased_estimation_loss")
    elif t["scale_v_pred_loss_like_noise_pred"]:
        why = "the same weight, as min-SNR with a gamma that no timestep reaches"
        t.take("loss.weighting", "min_snr_gamma", names[2], why=why)
        t.take("loss.snr_gamma", 1000.0, names[2], why=why)
    else:
        t.take("loss.weighting", "constant", *names)


def _take_loss(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    shares = {"l2": "mse", "l1": "mae", "huber": "huber", "smooth_l1": "smooth_l1"}
    chosen = shares.get(t["loss_type"])
    if chosen is None:
        t.leave("Chorus has no such loss: the squared error is used", "loss_type")
    for name in ("mse", "mae", "huber", "smooth_l1"):
        t.take(f"loss.{name}", 1.0 if name == (chosen or "mse") else 0.0, "loss_type")
    if chosen in ("huber", "smooth_l1"):
        is_constant, scale = t["huber_schedule"] == "constant", t["huber_scale"]
        t.take("loss.huber_delta", t["huber_c"] * (scale if is_constant else 1.0), "huber_c", "huber_scale")
        t.take("loss.huber_schedule", t["huber_schedule"], "huber_schedule")
        if scale != 1 and not is_constant:
            t.leave(
                "Chorus scales the threshold only of a constant schedule, and that of snr is not scaled there",
                "huber_scale",
            )


def _take_masks(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    is_on = t["masked_loss"] or t["alpha_mask"]
    t.take("loss.masked_training", is_on, "masked_loss", "alpha_mask")
    if is_on:
        t.take("loss.unmasked_weight", 0.0, "masked_loss", "alpha_mask")
        t.take("loss.unmasked_probability", 0.0, "masked_loss", "alpha_mask")


def _take_timesteps(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    sampling = t["timestep_sampling"] or "sigma"
    shift = t["training_shift"] if t["timestep_sampling"] is None else t["discrete_flow_shift"] or 1.0
    if not t.is_flow:
        t.take("diffusion.timesteps", "uniform", "weighting_scheme")
        return
    names = ("timestep_sampling", "weighting_scheme")
    by_weighting = {"logit_normal": "logit_normal", "mode": "mode"}.get(t["weighting_scheme"], "uniform")
    is_uniform = sampling in ("uniform", "nextdit_shift")
    chosen = by_weighting if sampling == "sigma" else "uniform" if is_uniform else "logit_normal"
    t.take("diffusion.timesteps", chosen, *names)
    if chosen == "logit_normal" and sampling == "sigma":
        _take_logit_mean(t)
        t.take("diffusion.logit_normal_std", t["logit_std"], "logit_std")
    elif chosen == "logit_normal":
        t.take("diffusion.logit_normal_mean", 0.0, "timestep_sampling")
        t.take("diffusion.logit_normal_std", t["sigmoid_scale"], "sigmoid_scale")
    elif chosen == "mode":
        t.take("diffusion.mode_scale", t["mode_scale"], "mode_scale")
    _take_shift(t, sampling, shift)
    take_flow_weights(t)
    if t["model_prediction_type"] == "sigma_scaled":
        why = "the predicted image is compared with the velocity there; Chorus compares the velocities, as raw does"
        t.leave(why, "model_prediction_type")


def _take_logit_mean(t: SdScriptsTranslation) -> None:
    """The mean, with the sign that it has where 1 is noise alone."""
    if t["timestep_sampling"] is None or not t["logit_mean"]:
        t.take("diffusion.logit_normal_mean", t["logit_mean"], "logit_mean")
        return
    why = "this script counts the timesteps from noise to image, so above 0 means less noise there and more here"
    t.take("diffusion.logit_normal_mean", -t["logit_mean"], "logit_mean", why=why)


def take_flow_weights(t: SdScriptsTranslation) -> None:
    """The weights of the timesteps of a flow model."""
    weights = {"sigma_sqrt": "sigma_sqrt", "cosmap": "cosmap"}
    chosen, why = weights.get(t["weighting_scheme"], "constant"), ""
    if t["timestep_sampling"] is None:  # the loss of the image, which is that of the velocity times sigma squared
        here = {"constant": "sigma", "sigma_sqrt": "constant"}.get(chosen, chosen)
        why = "the errors of the image count there, and those of the velocity here: " + (
            "the same, as the two weights cancel out" if here == "constant" else "times sigma squared there"
        )
        chosen = here
    elif t["model_prediction_type"] in ("raw", "additive") and chosen != "constant":
        chosen, why = "constant", "it weights the loss there only with model_prediction_type sigma_scaled"
    t.take("loss.weighting", chosen, "weighting_scheme", why=why)


def _take_shift(t: SdScriptsTranslation, sampling: str, shift: float) -> None:
    if sampling in ("flux_shift", "qwen_shift", "nextdit_shift"):
        t.take("diffusion.shift_by", "resolution", "timestep_sampling")
    elif (sampling in ("shift", "sigma") or t["timestep_sampling"] is None) and shift != 1 and math.isfinite(shift):
        name = "training_shift" if t["timestep_sampling"] is None else "discrete_flow_shift"
        t.take("diffusion.shift_by", "factor", name)
        t.take("diffusion.shift", shift, name)
    else:
        t.take("diffusion.shift_by", "none", "timestep_sampling")


def _take_loggers(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    chosen = t["log_with"] or ("tensorboard" if t["logging_dir"] else "")
    t.take("tensorboard", chosen in ("tensorboard", "all"), "log_with", "logging_dir")
    if chosen in ("wandb", "all"):
        t.take("wandb.enabled", True, "log_with")
        if t["log_tracker_name"]:
            t.take("wandb.project", t["log_tracker_name"], "log_tracker_name")
    rest = [name for name in ("log_prefix", "log_tracker_config", "wandb_run_name") if t.is_given(name)]
    if rest:
        t.leave("logs have the name of the output folder, and are in it", *rest)


def _take_sampler(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    if t.is_given("sample_sampler") and t["sample_sampler"] not in ("ddim", "euler"):
        t.leave("sampling.sampler has the model's own, Euler and Heun", "sample_sampler")


def _take_embedding(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    if not t.method.trains_words:
        return
    word = t["token_string"] or "embedding"
    placeholder = word.strip().strip("<>").replace(" ", "-").lower() or "embedding"
    why = "" if placeholder == word else "one lower-case word without brackets here"
    t.take("embeddings.0.placeholder", placeholder, "token_string", why=why)
    t.take("embeddings.0.vectors", t["num_vectors_per_token"], "num_vectors_per_token")
    t.take("embeddings.0.initial_text", t["init_word"] or "*", "init_word")
    t.take("embeddings.0.preserve_norm", False, "token_string")


OF_TRAINING: dict[str, Any] = {
    "save_precision": _take_save_precision,
    "save_format": _take_save_format,
    "saving": _take_saving,
    "keep": _take_keep,
    "backup": _take_backup,
    "sampling": _take_sampling,
    "validation": _take_validation,
    "parts": _take_parts,
    "rates": _take_rates,
    "text_encoder_stop": _take_text_encoder_stop,
    "schedule": _take_schedule,
    "warmup": _take_warmup,
    "length": _take_length,
    "activations": _take_activations,
    "swap": _take_swap,
    "fused": _take_fused,
    "clip_skip": _take_clip_skip,
    "text_chunks": _take_text_chunks,
    "seed": _take_seed,
    "noise": _take_noise,
    "timestep_range": _take_timestep_range,
    "loss_weight": _take_loss_weight,
    "loss": _take_loss,
    "masks": _take_masks,
    "timesteps": _take_timesteps,
    "loggers": _take_loggers,
    "sampler": _take_sampler,
    "embedding": _take_embedding,
}
