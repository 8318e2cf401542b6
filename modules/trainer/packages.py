"""Checks that the packages of the optimizer and of quantized weights are installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from modules.config.optimizers import OPTIMIZERS
from modules.config.quantizations import QUANTIZATIONS
from modules.trainer.TrainingError import TrainingError

if TYPE_CHECKING:
    from modules.config.ModelConfig import ModelConfig
    from modules.config.OptimizerConfig import OptimizerConfig


def check_packages(config: OptimizerConfig) -> None:
    """Raises TrainingError if the optimizer's package is missing. Imports nothing, which would take seconds."""
    facts = OPTIMIZERS[config.name]
    if facts.package and find_spec(facts.maker.partition(".")[0]) is None:
        raise TrainingError(
            f"optimizer.name {config.name!r} needs the package {facts.package}, which is not installed here: run "
            f"`pip install {facts.package}`, or choose adamw or adafactor."
        )


def check_quantization_packages(config: ModelConfig) -> None:
    """Raises TrainingError if the package of a chosen quantization is missing. Imports nothing."""
    for setting in ("denoiser_quantization", "text_encoder_quantization"):
        facts = QUANTIZATIONS.get(getattr(config, setting))
        if facts and facts.package and find_spec(facts.package) is None:
            raise TrainingError(
                f"model.{setting} {facts.name!r} needs the package {facts.package}, which is not installed here: run "
                f"`pip install {facts.package}`, or choose int8."
            )
