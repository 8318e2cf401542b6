"""Global batch size, accumulation steps and learning rate scaling for a number of ranks."""

from __future__ import annotations

import math

from modules.config.optimizers import facts_of_optimizer
from modules.config.TrainConfig import TrainConfig


def global_batch(config: TrainConfig, num_ranks: int) -> int:
    """The samples of one optimizer step over all ranks and micro-batches."""
    if config.batch_size_mode == "global":
        return config.batch_size
    return config.batch_size * num_ranks * config.gradient_accumulation_steps


def accumulation_steps(config: TrainConfig, num_ranks: int, samples_per_step: int) -> int:
    """The number of micro-batches per rank and step; with a batch size per device none is larger than that.

    samples_per_step: the global batch; a resumed run takes it from its backup, whatever the number of ranks is now.
    """
    if config.batch_size_mode == "global":
        return config.gradient_accumulation_steps
    return math.ceil(samples_per_step / (num_ranks * config.batch_size))


def learning_rate_factor(config: TrainConfig, num_ranks: int) -> float:
    """The factor for every learning rate, because more ranks make a larger batch."""
    if config.batch_size_mode == "global" or facts_of_optimizer(config.optimizer).finds_own_step:
        return 1.0
    return {"none": 1.0, "sqrt": math.sqrt(num_ranks), "linear": float(num_ranks)}[config.lr_scaling]


def describe_scaling(config: TrainConfig, num_ranks: int) -> str | None:
    """How the learning rate is scaled, in one line; None if it is unchanged."""
    factor = learning_rate_factor(config, num_ranks)
    if factor == 1:
        return None
    rule = f"sqrt({num_ranks})" if config.lr_scaling == "sqrt" else str(num_ranks)
    rate = config.optimizer.learning_rate
    return f"Scaling learning rate by {rule}: {scientific(rate)} -> {scientific(rate * factor)}"


def scientific(value: float) -> str:
    """Format a number like 1e-4, not like 0.0001 or 1e-04."""
    if value and not 0.01 <= value < 1000:
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:.4g}"
