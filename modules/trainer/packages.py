"""Checks that the packages of the optimizer, of quantized weights and of attention are installed."""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from modules.config.attentions import ATTENTIONS, package_problem
from modules.config.library_optimizers import SET_ELSEWHERE
from modules.config.optimizers import facts_of_optimizer
from modules.config.quantizations import QUANTIZATIONS
from modules.trainer.TrainingError import TrainingError

if TYPE_CHECKING:
    from modules.config.ModelConfig import ModelConfig
    from modules.config.OptimizerConfig import OptimizerConfig
    from modules.config.optimizers import OptimizerFacts

MATRICES = "use_muon"  # of a parameter group: whether an optimizer with OptimizerFacts.splits sees matrices in it


def check_optimizer_packages(config: OptimizerConfig) -> None:
    """Raises TrainingError if the optimizer's package is missing, or if it doesn't take its `other_arguments`.

    Without such arguments nothing is imported, which would take seconds.
    """
    facts = facts_of_optimizer(config)
    if facts.package and find_spec(facts.maker.partition(".")[0]) is None:
        raise TrainingError.at(
            "optimizer.name",
            f"{config.name!r} needs the package {facts.package}, which is not installed here: run "
            f"`pip install {facts.package}`, or choose adamw or adafactor.",
        )
    if config.name == "other" and config.other_arguments:
        _check_arguments(facts, facts.arguments(config))


def optimizer_class(facts: OptimizerFacts) -> Any:  # a class, whose arguments no type checker knows
    module, _, name = facts.maker.rpartition(".")
    return getattr(import_module(module), name)


def _check_arguments(facts: OptimizerFacts, arguments: dict[str, Any]) -> None:
    made = optimizer_class(facts)
    known = [name for name in inspect.signature(made).parameters if name not in {"params", "kwargs", *SET_ELSEWHERE}]
    for name in arguments:
        if name not in known:
            raise TrainingError.at(
                "optimizer.other_arguments", f": {facts.label} has no argument {name!r}; it has {', '.join(known)}."
            )
    import torch

    try:
        made([{"params": [torch.zeros(2, 2)], MATRICES: True}], **arguments)
    except (TypeError, ValueError) as error:
        raise TrainingError.at(
            "optimizer.other_arguments", f": {facts.label} says {str(error)!r}; change the value, or leave it out."
        ) from error


def check_quantization_packages(config: ModelConfig) -> None:
    """Raises TrainingError if the package of a chosen quantization is missing. Imports nothing."""
    for setting in ("denoiser_quantization", "text_encoder_quantization"):
        facts = QUANTIZATIONS.get(getattr(config, setting))
        if facts and facts.package and find_spec(facts.package) is None:
            raise TrainingError(
                f"model.{setting} {facts.name!r} needs the package {facts.package}, which is not installed here: run "
                f"`pip install {facts.package}`, or choose int8."
            )


def check_attention_package(config: ModelConfig) -> None:
    """Raises TrainingError if the package of the chosen attention is missing or too old. Imports nothing."""
    facts = ATTENTIONS.get(config.attention)
    if facts and (problem := package_problem(facts)):
        raise TrainingError.at("model.attention", f"{config.attention!r} {problem}, or choose auto.")
