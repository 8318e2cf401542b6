"""What the window does when somebody clicks the button of a problem."""

from __future__ import annotations

from modules.config.describe import value_at
from modules.config.files import config_from_values, to_values
from modules.config.problems import Remedy
from modules.config.TrainConfig import TrainConfig


def with_remedy(config: TrainConfig, remedy: Remedy) -> TrainConfig:
    """A copy of `config` with the remedy's values."""
    config = config_from_values(to_values(config))
    for path, value in remedy.values.items():
        parent, _, name = path.rpartition(".")
        setattr(value_at(config, parent) if parent else config, name, value)
    return config
