"""Checks of a run before its model is loaded, made before the start and again by each rank.

Torch is imported only for settings that need it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.errors import ConfigError
from modules.config.methods import facts_of
from modules.config.problems import Problem, warning
from modules.config.rules.ranks import check_batch, divided_optimizer_problems, sharding_problems
from modules.config.validation import check_settings
from modules.data.prepare import check_sizes
from modules.data.sample_images import check_sample_images
from modules.distributed.usable_gpus import supports_bf16
from modules.families.prediction import check_offset_noise, check_prediction
from modules.families.registry import FAMILIES
from modules.families.sampling_package import sampling_package_problem
from modules.methods.lora_start import read_start
from modules.methods.parts import trained_parts
from modules.trainer.compiling import check_compiler
from modules.trainer.packages import (
    check_attention_package,
    check_optimizer_packages,
    check_quantization_packages,
)
from modules.weights.clip_layers import check_clip_skips
from modules.weights.errors import WeightsError
from modules.weights.hub_parts import with_parts_on_disk
from modules.weights.inspect import BaseInfo, check_base, check_config_folder
from modules.weights.model_files import check_format
from modules.weights.own_parts import own_parts, replaced_parts
from modules.weights.quantization import check_matmul
from modules.weights.single_file_parts import check_single_file
from modules.weights.training_adapter import read_training_adapter

if TYPE_CHECKING:
    import torch

    from modules.config.ModelConfig import ModelConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.families.Family import Family


def check_device(config: TrainConfig) -> None:
    """Raises UserError if model.compile finds no compiler, or the device can't do what model.quantized_matmul asks for.

    Initializes the device for these settings, which takes GPU memory.
    """
    model = config.model
    if not facts_of(config).uses_denoiser or (model.compile == "off" and model.quantized_matmul != "on"):
        return
    from modules.distributed.Runtime import default_device

    device = default_device(config.device_indexes)
    if model.compile != "off":
        check_compiler(model, device)
    check_matmul(model, device)


@dataclass(frozen=True)
class CheckedStart:
    """A start that `check_start` has not refused, for what follows in the same process: nothing is looked at twice.

    base: what model.base is.
    """

    base: BaseInfo
    warnings: tuple[Problem, ...]


def check_start(config: TrainConfig, num_ranks: int, resume: bool = False) -> CheckedStart:
    """Checks the settings with the files that they name. Raises UserError if the run can't start.

    resume: don't check the batch size, which the backup determines.
    """
    warnings = check_settings(config)

    def warn(text: str) -> None:
        warnings.append(warning(text))

    # also without enable_multi_gpu: a launcher may have started several ranks all the same
    shards = num_ranks > 1 and config.distributed_strategy in ("fsdp", "hsdp")
    unsupported = list(sharding_problems(config)) if shards else []
    if num_ranks > 1:
        unsupported += divided_optimizer_problems(config)
    if unsupported:
        raise ConfigError(unsupported)
    if not resume:
        check_batch_divides(config, num_ranks)
    family = FAMILIES[config.family]
    base = check_base(config.model.base, family, replaced=replaced_parts(family, config.model))
    check_format(family, config.output)
    check_sizes(config, family)
    check_sample_images(config.sampling, family)
    _check_sampling_package(config, family)
    if base.kind == "single_file":
        check_config_folder(config.model, family)
        check_single_file(config.model, family)
    _check_clip_skips(config, family, base)
    own_parts(family, with_parts_on_disk(config.model))
    if config.model.training_adapter and facts_of(config).uses_denoiser:
        read_training_adapter(config.model.training_adapter, family, warn)
    _check_scheduler(config, family, base)
    check_optimizer_packages(config.optimizer)
    check_quantization_packages(config.model)
    check_attention_package(config.model)
    _check_trained(config, family, warn)
    return CheckedStart(base, tuple(warnings))


def _check_sampling_package(config: TrainConfig, family: Family) -> None:
    """Raises ConfigError if the run makes samples and a package that they need is missing."""
    problem = sampling_package_problem(family.sampling_package, family.label)
    if problem and config.sampling.makes_samples:
        raise ConfigError.at("sampling.unit", f"{config.sampling.unit!r}: {problem}")


def check_precision(model: ModelConfig, device: torch.device) -> None:
    """Raises ConfigError if the device does not support model.mixed_precision, alone or with model.weight_dtype."""
    if model.mixed_precision == "bf16" and not supports_bf16(device):
        import torch

        name = torch.cuda.get_device_name(device)
        raise ConfigError.at("model.mixed_precision", f"'bf16': {name} can't compute in bf16; use fp16.")
    of_weights = {"bfloat16": "bf16", "float16": "fp16"}.get(model.weight_dtype)
    if device.type == "cpu" and of_weights and model.mixed_precision not in ("no", of_weights):
        # autocast on a CPU leaves normalization in the dtype of its input, whose weights then have another one
        raise ConfigError.at(
            "model.mixed_precision",
            f"{model.mixed_precision!r} with weight_dtype {model.weight_dtype}: a CPU can't "
            f"combine them; set model.mixed_precision to {of_weights}, or model.weight_dtype to float32.",
        )


def check_batch_divides(config: TrainConfig, num_ranks: int) -> None:
    """Raises ConfigError if the batch of a step can't be divided among the ranks."""
    accumulation = config.gradient_accumulation_steps
    if problem := check_batch(config.batch_size, config.batch_size_mode, num_ranks, accumulation):
        raise ConfigError([problem])


def check_trained_parts(config: TrainConfig, parts: Collection[str]) -> None:
    """Raises ConfigError if there is no part to train."""
    if not parts:
        family = FAMILIES[config.family]
        has_denoiser = not set(family.denoisers).isdisjoint(facts_of(config).trainable(family))
        part = "denoiser" if has_denoiser else "text_encoder"
        raise ConfigError.at("method", f"{config.method!r} can't train the enabled parts: enable {part}.train.")


def _check_clip_skips(config: TrainConfig, family: Family, base: BaseInfo) -> None:
    """Checks a folder's text encoders; those of a model on the Hub are only known once it is on disk."""
    folder = {"folder": config.model.base, "single_file": config.model.config_folder}.get(base.kind)
    if folder and facts_of(config).uses_denoiser:
        check_clip_skips(config.model, family, Path(os.path.expanduser(folder)))


def _check_scheduler(config: TrainConfig, family: Family, base: BaseInfo) -> None:
    """Checks a folder's scheduler; the prediction type of other bases is only known once they are opened."""
    model = config.model
    if family.objective != "ddpm" or model.prediction_type != "auto" or base.kind != "folder":
        return
    path = Path(os.path.expanduser(model.base)) / "scheduler" / "scheduler_config.json"
    try:
        scheduler = json.loads(path.read_text(encoding="utf-8"))
        predicted = scheduler.get("prediction_type", "epsilon")
    except (OSError, ValueError, AttributeError) as error:
        raise WeightsError.at("model.base", f"{model.base!r}: {path} can't be read; fetch the model again.") from error
    if facts_of(config).uses_denoiser:
        check_prediction(family, scheduler)
        check_offset_noise(scheduler, config.diffusion)
    if model.zero_terminal_snr and predicted == "epsilon":
        raise WeightsError.at(
            "model.zero_terminal_snr",
            ": this base predicts epsilon, which carries no information about the image at pure "
            "noise; set model.prediction_type to v_prediction, or disable zero_terminal_snr.",
        )


def _check_trained(config: TrainConfig, family: Family, warn: Callable[[str], None]) -> None:
    method = facts_of(config)
    trainable = set(method.trainable(family))
    if not method.chooses_parts:
        return
    parts = trained_parts(family, config, trainable)
    check_trained_parts(config, parts)
    if method.trains_adapters:
        read_start(family, config.lora, parts, warn)
