"""What batch size and learning rate mean on a number of ranks."""

from __future__ import annotations

import math

from modules.config.TrainConfig import TrainConfig

# They find their own step size: a rule that scales the learning rate with the batch must leave them alone.
SELF_TUNING_OPTIMIZERS = frozenset({"prodigy"})


def global_batch(config: TrainConfig, num_ranks: int) -> int:
    """Samples of one optimizer step over all ranks and micro-batches."""
    if config.batch_size_mode == "global":
        return config.batch_size
    return config.batch_size * num_ranks * config.gradient_accumulation_steps


def learning_rate_factor(config: TrainConfig, num_ranks: int) -> float:
    """What every group's learning rate is multiplied by because more ranks make a larger batch."""
    if config.batch_size_mode == "global" or config.optimizer.name in SELF_TUNING_OPTIMIZERS:
        return 1.0
    return {"none": 1.0, "sqrt": math.sqrt(num_ranks), "linear": float(num_ranks)}[config.lr_scaling]
