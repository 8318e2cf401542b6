"""Every strategy on 2 and 4 ranks gives DDP's curve; test_sharded_ranks.py has a short form of this."""

from __future__ import annotations

import shutil
from itertools import product

import pytest
import torch

from tests.support import rank_scenarios
from tests.trainer.test_sharded_ranks import FULL, LORA, assert_same_models

pytestmark = pytest.mark.proof

DDP = ("distributed_strategy=ddp",)
METHODS = {"lora": LORA, "full": FULL}
STRATEGIES = {  # its settings; those of the runtime
    "fsdp": ((), {"strategy": "fsdp"}),
    "hsdp": ((), {"strategy": "hsdp"}),
    "zero": ((*DDP, "ddp_shard_optimizer=true"), {"divides_updates": True}),
}
DTYPES = {"float64": 1e-9, "float32": 1e-5}
RUN = ("ema.enabled=true", "output.dtype=float32", "output.save_ema=both", "max_steps=6")  # an epoch has two steps


def sync_of(strategy: str, num_ranks: int) -> dict:
    """The settings of the runtime; HSDP shares in pairs, on two ranks each has a copy of its own."""
    sync = STRATEGIES[strategy][1]
    return {**sync, "sharing_ranks": num_ranks // 2} if strategy == "hsdp" else sync


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("pool", "family", "method"), product(("two", "four"), ("sd15", "flux1"), METHODS), ids=lambda value: value
)
def test_each_strategy_gives_the_curve_of_ddp(dtype, pool, family, method, settings, two_ranks, four_ranks, tmp_path):
    """With two micro-batches, clipping, EMA and mixed image sizes; on four ranks, one has no sample in each epoch."""
    ranks = {"two": two_ranks, "four": four_ranks}[pool]
    options = (*METHODS[method], *RUN, f"model.weight_dtype={dtype}")
    expected = ranks.run(rank_scenarios.train, config=settings("ddp", *DDP, *options, family=family))[0]
    assert torch.tensor(expected["losses"]).std() > 1e-3  # a flat curve would prove nothing
    assert min(expected["norms"]) > 0.05  # every step is clipped
    assert expected["samples"] == [8, 3] * 3
    assert expected["accumulation"] == 2
    assert expected["digest"] != expected["ema"]
    tolerance = DTYPES[dtype]
    for strategy, (own_options, _) in STRATEGIES.items():
        config = settings(strategy, *options, *own_options, family=family)
        results = ranks.run(rank_scenarios.train, config=config, sync=sync_of(strategy, ranks.world_size))
        assert len({(rank["digest"], rank["ema"]) for rank in results}) == 1
        assert results[0]["losses"] == pytest.approx(expected["losses"], rel=tolerance)
        assert results[0]["norms"] == pytest.approx(expected["norms"], rel=10 * tolerance)
        if strategy == "zero":
            assert (results[0]["digest"], results[0]["ema"]) == (expected["digest"], expected["ema"])
        weights = (1e-6, 1e-9) if dtype == "float64" else (1e-3, 2e-5)  # they are saved in float32
        assert_same_models(tmp_path / strategy, tmp_path / "ddp", *weights)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("source", [*STRATEGIES, "ddp"])
def test_each_strategy_resumes_from_each_on_another_number_of_ranks(
    source, method, settings, two_ranks, four_ranks, tmp_path
):
    options = (*METHODS[method], *RUN, "model.weight_dtype=float64")
    straight = two_ranks.run(rank_scenarios.train, config=settings("straight", *DDP, *options))[0]
    strategies = {**STRATEGIES, "ddp": (DDP, {})}
    half = (*options, *strategies[source][0], "max_steps=3", "backup.at_end=true")
    sync = sync_of(source, 2) if source in STRATEGIES else {}
    two_ranks.run(rank_scenarios.train, config=settings("half", *half), sync=sync)
    for ranks, (target, (own_options, _)) in product((two_ranks, four_ranks), strategies.items()):
        name = f"{target}-{ranks.world_size}"
        shutil.copytree(tmp_path / "half", tmp_path / name)
        config = settings(name, *options, *own_options)
        sync = sync_of(target, ranks.world_size) if target in STRATEGIES else {}
        resumed = ranks.run(rank_scenarios.train, config=config, sync=sync, resume=True)[0]
        assert resumed["steps"] == [4, 5, 6]
        assert resumed["losses"] == pytest.approx(straight["losses"][3:], rel=1e-9)
        assert resumed["norms"] == pytest.approx(straight["norms"][3:], rel=1e-8)
