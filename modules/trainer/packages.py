"""Which package each optimizer comes from, where torch does not have it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from modules.trainer.TrainingError import TrainingError

if TYPE_CHECKING:
    from modules.config.OptimizerConfig import OptimizerConfig

# optimizer.name -> (what is imported, what pip installs)
PACKAGES = {
    "adamw_8bit": ("bitsandbytes", "bitsandbytes"),
    "lion_8bit": ("bitsandbytes", "bitsandbytes"),
    "schedule_free": ("schedulefree", "schedulefree"),
    "lion": ("pytorch_optimizer", "pytorch-optimizer"),
    "came": ("pytorch_optimizer", "pytorch-optimizer"),
    "prodigy": ("prodigyopt", "prodigyopt"),
}


def check_packages(config: OptimizerConfig) -> None:
    """Raises TrainingError where the optimizer's package is missing. Nothing is imported: that takes seconds."""
    module, package = PACKAGES.get(config.name, ("", ""))
    if module and find_spec(module) is None:
        raise TrainingError(
            f"optimizer.name {config.name!r} needs the package {package}, which is not installed here: run "
            f"`pip install {package}`, or choose adamw or adafactor."
        )
