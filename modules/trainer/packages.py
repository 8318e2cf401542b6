"""Whether the package of an optimizer is there."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from modules.config.optimizers import OPTIMIZERS
from modules.trainer.TrainingError import TrainingError

if TYPE_CHECKING:
    from modules.config.OptimizerConfig import OptimizerConfig


def check_packages(config: OptimizerConfig) -> None:
    """Raises TrainingError where the optimizer's package is missing. Nothing is imported: that takes seconds."""
    facts = OPTIMIZERS[config.name]
    if facts.package and find_spec(facts.maker.partition(".")[0]) is None:
        raise TrainingError(
            f"optimizer.name {config.name!r} needs the package {facts.package}, which is not installed here: run "
            f"`pip install {facts.package}`, or choose adamw or adafactor."
        )
