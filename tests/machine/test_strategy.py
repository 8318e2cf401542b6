"""Which strategy distributed_strategy auto selects, and why."""

from __future__ import annotations

import pytest

from modules.config.files import config_from_values
from modules.machine.memory.RunMemory import sharing_ranks
from modules.machine.memory_estimate import GIB, estimate_memory
from modules.machine.strategy import choose_strategy

SDXL = {"family": "sdxl", "method": "full", "enable_multi_gpu": True, "optimizer": {"name": "adamw"}}
AUTO = {**SDXL, "distributed_strategy": "auto"}


@pytest.mark.parametrize(
    ("values", "ranks", "gib", "strategy", "reason"),
    [
        ({"distributed_strategy": "fsdp"}, 8, 80, "fsdp", "it is chosen"),
        ({}, 1, 8, "ddp", "there is only one rank"),
        ({}, 8, None, "ddp", "there are no GPUs that could share a model"),
        ({"method": "vae"}, 8, 8, "ddp", "the method can't be combined with sharding"),
        ({"optimizer": {"name": "came"}}, 8, 24, "ddp", "optimizer.name can't be combined with sharding"),
        ({}, 8, 80, "ddp", "the whole model fits: about "),
        ({}, 8, 24, "fsdp", "about "),
        ({"num_nodes": 2}, 8, 80, "ddp", "the whole model fits: about "),
        ({"num_nodes": 2}, 16, 32, "hsdp", "about "),
        ({"num_nodes": 8}, 16, 32, "fsdp", "about "),  # the two GPUs of a machine are not enough
    ],
)
def test_auto_takes_the_strategy_that_exchanges_least_of_those_that_fit(values, ranks, gib, strategy, reason):
    config = config_from_values({**AUTO, **values})
    chosen, why = choose_strategy(config, ranks, gib and gib * GIB)
    assert (chosen, why.startswith(reason)) == (strategy, True), why


def test_the_reason_names_what_each_gpu_holds_and_what_it_would_hold():
    _, why = choose_strategy(config_from_values(AUTO), 8, 24 * GIB)
    sizes = {
        strategy: estimate_memory(config_from_values({**SDXL, "distributed_strategy": strategy}), 8).peak / GIB
        for strategy in ("ddp", "fsdp")
    }
    assert why == f"about {sizes['fsdp']:.1f} of 24.0 GiB on each GPU instead of {sizes['ddp']:.1f}"


@pytest.mark.parametrize(
    ("values", "sharing"),
    [
        ({"distributed_strategy": "ddp"}, 1),
        ({"distributed_strategy": "fsdp"}, 16),
        ({"distributed_strategy": "hsdp"}, 8),
        ({"distributed_strategy": "hsdp", "sharding_group_size": 4}, 4),
    ],
)
def test_how_many_ranks_share_a_model(values, sharing):
    assert sharing_ranks(config_from_values({**SDXL, "num_nodes": 2, **values}), 16) == sharing
