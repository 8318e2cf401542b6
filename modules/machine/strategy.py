"""Choose how the ranks divide a model among them, for distributed_strategy auto."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from modules.config.rules.ranks import sharding_problems
from modules.machine.memory_estimate import GIB, estimate_memory

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.machine.run_shape import RunShape

Strategy = Literal["ddp", "fsdp", "hsdp"]


def choose_strategy(config: TrainConfig, num_ranks: int, gpu_bytes: float | None) -> tuple[Strategy, str]:
    """The strategy that distributed_strategy selects, and the reason as a clause.

    auto: the first of DDP, HSDP and FSDP with which the run fits by estimate, as each exchanges more than the one
    before; FSDP if none does. The estimate is for the published model of the family.

    num_ranks: over all machines. gpu_bytes: memory of the smallest GPU; None: the ranks use no GPUs, or GPUs that can't
    share a model.
    """
    if config.distributed_strategy != "auto":
        return config.distributed_strategy, "it is chosen"
    if num_ranks == 1:
        return "ddp", "there is only one rank"
    if gpu_bytes is None:
        return "ddp", "there are no GPUs that could share a model"
    candidates: list[Strategy] = ["ddp", "hsdp", "fsdp"] if config.num_nodes > 1 else ["ddp", "fsdp"]
    configs = {strategy: replace(config, distributed_strategy=strategy) for strategy in candidates}
    if problem := next(sharding_problems(configs["fsdp"]), None):
        setting = "the method" if problem.path == "distributed_strategy" else problem.path
        return "ddp", f"{setting} can't be combined with sharding"
    needs = {}
    for strategy in candidates:
        estimate = estimate_memory(configs[strategy], num_ranks)
        if estimate is None:
            return "ddp", "the memory that this model needs is not known"
        needs[strategy] = estimate.peak
        if estimate.peak <= gpu_bytes:
            break
    size, limit = needs[strategy] / GIB, gpu_bytes / GIB
    if strategy == "ddp":
        return "ddp", f"the whole model fits: about {size:.1f} of {limit:.1f} GiB"
    return strategy, f"about {size:.1f} of {limit:.1f} GiB on each GPU instead of {needs['ddp'] / GIB:.1f}"


def with_strategy(config: TrainConfig, shape: RunShape) -> TrainConfig:
    """The settings with the strategy of a run of this shape."""
    is_same = shape.strategy == config.distributed_strategy
    return config if is_same else replace(config, distributed_strategy=shape.strategy)
