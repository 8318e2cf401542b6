"""Estimate the disk space that the models and backups of a run take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.config.families import model_of
from modules.config.methods import facts_of
from modules.machine.architectures import load_architectures
from modules.machine.memory.RunMemory import RunMemory

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_AVERAGE_BYTES = 4  # of a weight in the EMA
_LORA_SHARE_PER_RANK = 0.003 / 16  # of the weights of SD 1.5, at rank 16 on its attention layers


def size_share(config: TrainConfig, base_bytes: int | None, of_widths: bool = False) -> float:
    """Of the published model's size that a base model has, at most 1.

    base_bytes: of its files; None or 0: unknown. of_widths: that of what grows with the width of layers, not with its
    square as their weights do: adapters, and the results of text encoders.
    """
    typical = model_of(config).typical_bytes
    share = min(1.0, 2 * base_bytes / typical) if base_bytes else 1.0  # files may be in 16 bits
    return share**0.5 if of_widths else share


def model_disk_bytes(config: TrainConfig, base_bytes: int | None) -> float:
    """What one saved model takes, in all its formats."""
    method = facts_of(config)
    model = load_architectures().get(model_of(config).name)
    item_bytes = _ITEM_BYTES[config.output.dtype]
    if model is None:
        numbers = _trained_of_unknown(config, base_bytes)
    elif method.trains_weights:  # saved with all that it needs
        numbers = model.denoiser + sum(model.text_encoders) + model.vae + model.connectors
        numbers *= size_share(config, base_bytes)
    else:
        numbers = _trained(config, model, base_bytes)
    num_formats = 2 if method.has_formats and config.output.format == "both" else 1
    both_averages = config.ema.enabled and config.output.save_ema == "both"
    return numbers * item_bytes * num_formats * (1 + both_averages)


def backup_disk_bytes(config: TrainConfig, base_bytes: int | None) -> float:
    """What one backup takes: trained weights, optimizer state and EMA."""
    model = load_architectures().get(model_of(config).name)
    average = _AVERAGE_BYTES if config.ema.enabled else 0
    if model is None:
        return _trained_of_unknown(config, base_bytes) * (3 * 4 + average)  # weights and two moments
    run = RunMemory(config, model, 1)
    return _trained(config, model, base_bytes) * (run.trained_weight_bytes + run.state_bytes + average)


def run_disk_bytes(config: TrainConfig, base_bytes: int | None) -> float:
    """What the models and backups of a run take at most at once, without models that are saved during training if all
    of these are kept, whose number nobody knows."""
    saves, backs_up = (part.unit != "never" and part.every > 0 for part in (config.output, config.backup))
    models = 1 + ((config.output.keep or 1) if saves else 0)
    # one more backup than is kept, while it is being written
    backups = config.backup.keep + 1 if backs_up else int(config.backup.at_end)
    return models * model_disk_bytes(config, base_bytes) + backups * backup_disk_bytes(config, base_bytes)


def _trained(config: TrainConfig, model, base_bytes: int | None) -> float:
    """The number of trained weights."""
    adapts = facts_of(config).trains_adapters
    return RunMemory(config, model, 1).num_trained * size_share(config, base_bytes, of_widths=adapts)


def _trained_of_unknown(config: TrainConfig, base_bytes: int | None) -> float:
    """The same for a family of unknown size."""
    method = facts_of(config)
    weights = model_of(config).typical_bytes / 4 * size_share(config, base_bytes)
    if method.trains_adapters:
        return weights * _LORA_SHARE_PER_RANK * config.lora.rank
    return weights if method.trains_weights else 0.0
