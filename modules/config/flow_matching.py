"""Which settings train by flow matching."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.config.errors import ConfigError
from modules.config.families import load_families
from modules.config.installation import command_name
from modules.config.methods import METHODS

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig


def check_flow(config: TrainConfig) -> None:
    """Raises ConfigError if the family is not trained by flow matching, or the method trains without the denoiser."""
    if load_families()[config.family].objective != "flow":
        raise ConfigError.at(
            "family", f"{config.family} is not trained by flow matching: use {command_name('train')} for it."
        )
    if not METHODS[config.method].uses_denoiser:
        raise ConfigError.at(
            "method", f"{config.method} trains no denoiser, so there is no flow to match: use lora or full."
        )
