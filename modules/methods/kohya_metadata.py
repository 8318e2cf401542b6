"""The settings of a LoRA in the metadata fields of kohya's scripts (`ss_...`), which other programs and sites show.

Only what means the same there is written. Times, captions and folders are not: files of equal runs stay equal, and say
nothing about the machine or the data set.
"""

from __future__ import annotations

import json
import math
import os
import re
from typing import TYPE_CHECKING, Any

from modules.config.adapters import facts_of_adapter
from modules.config.optimizers import facts_of_optimizer
from modules.config.rates import rate_of

if TYPE_CHECKING:
    from modules.config.LoraConfig import LoraConfig
    from modules.config.ModelConfig import ModelConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.weights.BaseModel import BaseModel

_SCHEDULES = {  # others have the same name
    "cosine_restarts": "cosine_with_restarts",
    "wsd": "warmup_stable_decay",
    "piecewise": "piecewise_constant",
}


def kohya_metadata(base: BaseModel, config: TrainConfig, steps: str | None = None) -> dict[str, str]:
    """The fields of a run's LoRA files. steps: the number of optimizer steps so far."""
    values = {
        **_model(base, config),
        **({} if config.lora.start_from else _network(config.lora)),  # the file has ranks and alphas of its own
        **_loop(config),
        **_noise_and_loss(config),
        "ss_steps": steps,
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def expert_metadata(base: BaseModel, model: ModelConfig) -> dict[str, dict[str, str]]:
    """Expert -> the fields that differ in its own file. Those of the first denoiser are as in `kohya_metadata`."""
    files = model.denoiser_files(base.family.denoisers).values()
    names = [_base_name(file or model.base) for file in files]
    experts = zip(base.family.denoisers, names, strict=True)
    return {expert: {"ss_sd_model_name": name} for expert, name in list(experts)[1:]}


def _model(base: BaseModel, config: TrainConfig) -> dict[str, Any]:
    family, text = base.family, base.family.text
    denoiser = base.meta_module(family.denoisers[0])
    version = family.kohya_version(denoiser.config, base.pipe.scheduler.config) or None
    return {
        "ss_base_model_version": version,
        "ss_v2": version and version.startswith("sd_v2"),
        "ss_sd_model_name": _base_name(config.model.denoiser or config.model.base),
        "ss_vae_name": _base_name(config.model.vae) if config.model.vae else None,
        "ss_output_name": config.output.name,
        "ss_clip_skip": config.model.clip_skip if text.skips_layers and config.model.clip_skip > 1 else None,
        "ss_max_token_length": 75 * text.chunks if text.chunks > 1 else None,
        "ss_zero_terminal_snr": config.model.zero_terminal_snr or None,
    }


def _base_name(base: str) -> str:
    """The name of a file or folder without its path; a name on the Hub as it is."""
    is_hub = re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", base) and not os.path.exists(base)
    return base if is_hub else re.split(r"[/\\]", base.rstrip("/\\"))[-1]


def _network(lora: LoraConfig) -> dict[str, Any]:
    args: dict[str, Any] = {}
    kind = facts_of_adapter(lora)
    is_lycoris = kind.is_in_lycoris_files or lora.train_norms
    if is_lycoris:
        args["algo"] = kind.algorithm or kind.name
    args |= {name: value for setting, name in kind.arguments.items() if (value := getattr(lora, setting))}
    if lora.targets == "linear_conv":
        args["conv_dim"] = lora.rank if lora.conv_rank is None else lora.conv_rank
        alpha = lora.alpha if lora.conv_alpha is None else lora.conv_alpha
        args["conv_alpha"] = _alpha(alpha, args["conv_dim"], lora)
    if lora.plus_ratio != 1:
        args["loraplus_lr_ratio"] = lora.plus_ratio
    args |= {name: value for name in ("rank_dropout", "module_dropout") if (value := getattr(lora, name))}
    if lora.dora:
        args["dora_wd"] = True
    if lora.train_norms:
        args["train_norm"] = True
    return {
        "ss_network_module": "lycoris.kohya" if is_lycoris else "networks.lora",
        "ss_network_dim": lora.rank,
        "ss_network_alpha": _alpha(lora.alpha, lora.rank, lora),
        "ss_network_dropout": lora.dropout or None,
        "ss_network_args": json.dumps({name: str(value) for name, value in args.items()}) if args else None,
        "ss_scale_weight_norms": lora.max_norm,
    }


def _alpha(alpha: float, rank: int, lora: LoraConfig) -> float:
    """As in the file, where every program divides it by the rank."""
    return alpha * math.sqrt(rank) if lora.rslora else alpha


def _loop(config: TrainConfig) -> dict[str, Any]:
    optimizer, schedule, data = config.optimizer, config.schedule, config.data
    name, warmup = _SCHEDULES.get(schedule.name, schedule.name), schedule.warmup
    rates = {"ss_unet_lr": config.denoiser, "ss_text_encoder_lr": config.text_encoder}
    return {
        "ss_learning_rate": optimizer.learning_rate,
        **{field: rate_of(part, config) for field, part in rates.items() if part.train},
        "ss_optimizer": facts_of_optimizer(optimizer).maker,
        "ss_max_grad_norm": optimizer.max_grad_norm,
        "ss_lr_scheduler": "constant_with_warmup" if name == "constant" and warmup else name,
        "ss_lr_warmup_steps": int(warmup) if warmup >= 1 else warmup,
        "ss_max_train_steps": config.max_steps,
        "ss_num_epochs": config.epochs if config.max_steps is None else None,
        "ss_batch_size_per_device": config.batch_size if config.batch_size_mode == "per_device" else None,
        "ss_gradient_accumulation_steps": config.gradient_accumulation_steps,
        "ss_gradient_checkpointing": config.model.gradient_checkpointing,
        "ss_mixed_precision": config.model.mixed_precision,
        "ss_seed": config.seed,
        "ss_resolution": None if data.resolutions else data.shape,
        "ss_enable_bucket": data.bucketing,
        "ss_caption_dropout_rate": data.caption_dropout,
    }


def _noise_and_loss(config: TrainConfig) -> dict[str, Any]:
    noise, loss = config.diffusion, config.loss
    names = {"mse": "l2", "mae": "l1", "huber": "huber", "smooth_l1": "smooth_l1", "log_cosh": "log_cosh"}
    used = [theirs for ours, theirs in names.items() if getattr(loss, ours)]
    has_multires = noise.multires_noise_iterations > 0
    return {
        "ss_noise_offset": noise.offset_noise or None,
        "ss_ip_noise_gamma": noise.input_perturbation or None,
        "ss_multires_noise_iterations": noise.multires_noise_iterations if has_multires else None,
        "ss_multires_noise_discount": noise.multires_noise_discount if has_multires else None,
        "ss_min_snr_gamma": loss.snr_gamma if loss.weighting == "min_snr_gamma" else None,
        "ss_debiased_estimation": True if loss.weighting == "debiased" else None,
        "ss_loss_type": used[0] if len(used) == 1 else None,
    }
