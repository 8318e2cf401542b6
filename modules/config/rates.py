"""The learning rates of a model's parts, before they are scaled for the number of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.config.families import load_families
from modules.config.methods import facts_of

if TYPE_CHECKING:
    from modules.config.PartConfig import PartConfig
    from modules.config.TrainConfig import TrainConfig


def rate_of(part: PartConfig, config: TrainConfig) -> float:
    return part.learning_rate or config.optimizer.learning_rate


def rates_of(config: TrainConfig) -> dict[str, float]:
    """Name of each part that trains -> its learning rate; text encoders with rates of their own are numbered from 1.

    A method that does not choose its parts has one rate, under its own name.
    """
    names = ("denoiser", "text_encoder") if facts_of(config).chooses_parts else ()
    trained = {name: getattr(config, name) for name in names if getattr(config, name).train}
    if not trained:
        return {config.method: config.optimizer.learning_rate}
    rates: dict[str, float] = {}
    for name, part in trained.items():
        one_by_one = config.text_encoder.learning_rates if part is config.text_encoder else []
        rates |= {f"text encoder {number}": rate for number, rate in enumerate(one_by_one, start=1)}
        if not one_by_one or len(one_by_one) < len(load_families()[config.family].text_encoders):
            rates[name.replace("_", " ")] = rate_of(part, config)
    return rates
