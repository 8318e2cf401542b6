"""ZeRO-1: ranks that each hold the whole model, but the optimizer's state of a part of it."""

from __future__ import annotations

import shutil

import pytest

from modules.config.optimizers import OPTIMIZERS, optimizers_that
from modules.distributed.DividedUpdates import divide
from modules.weights.safe import load_tensors
from tests.support import divided_scenarios, rank_scenarios

DDP = ("distributed_strategy=ddp",)
ZERO = (*DDP, "ddp_shard_optimizer=true")
DIVIDED = {"divides_updates": True}
FULL, LORA = ("method=full", "optimizer.learning_rate=1e-4"), ("method=lora", "optimizer.learning_rate=1e-3")


def same_run(first: dict, second: dict) -> None:
    for key in ("losses", "norms", "digest", "ema"):
        assert first[key] == second[key], key


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        ([5, 3, 3, 2, 2, 1], 2, [[0, 3, 5], [1, 2, 4]]),
        ([4, 4, 4, 4], 4, [[0], [1], [2], [3]]),
        ([7], 3, [[0], [], []]),
        ([], 2, [[], []]),
    ],
)
def test_parameters_are_divided_into_parts_of_similar_size(sizes, count, expected):
    assert divide(sizes, count) == expected


@pytest.mark.parametrize(
    ("pool", "options"),
    [
        ("two", (*LORA, "family=sd15")),
        ("two", (*FULL, "optimizer.stochastic_rounding=true", "model.weight_dtype=bfloat16")),
        ("four", (*FULL, "gradient_accumulation_steps=1")),
    ],
    ids=["lora", "rounded", "full on four"],
)
def test_the_run_is_bit_for_bit_that_of_ranks_with_the_whole_state(pool, options, settings, two_ranks, four_ranks):
    ranks = {"two": two_ranks, "four": four_ranks}[pool]
    options = (*options, "max_steps=4", "ema.enabled=true")
    whole = ranks.run(rank_scenarios.train, config=settings("whole", *DDP, *options))[0]
    divided = ranks.run(rank_scenarios.train, config=settings("divided", *ZERO, *options), sync=DIVIDED)
    assert min(whole["norms"]) > 0.05  # every step is clipped
    for rank in divided:
        same_run(rank, whole)


@pytest.mark.parametrize("optimizer", optimizers_that(lambda facts: facts.divides))
def test_each_optimizer_gives_the_same_weights_from_a_part_of_the_state(optimizer, two_ranks):
    pytest.importorskip(OPTIMIZERS[optimizer].maker.partition(".")[0])
    whole, divided = (
        two_ranks.run(divided_scenarios.train_net, optimizer=optimizer, divides=divides) for divides in (False, True)
    )
    assert len({rank["digest"] for rank in (*whole, *divided)}) == 1
    assert not set(divided[0]["holds"]) & set(divided[1]["holds"])
    assert {*divided[0]["holds"], *divided[1]["holds"]} == set(whole[0]["holds"]) == set(whole[1]["holds"])


def test_parts_of_the_state_may_be_in_system_memory(settings, two_ranks):
    options = (*FULL, "max_steps=2", "ema.enabled=true")
    whole = two_ranks.run(rank_scenarios.train, config=settings("whole", *DDP, *options))[0]
    config = settings("divided", *ZERO, *options, "optimizer.state_in_ram=true")
    for rank in two_ranks.run(rank_scenarios.train, config=config, sync=DIVIDED):
        same_run(rank, whole)


def test_each_rank_holds_its_part_of_the_state(settings, four_ranks):
    config = settings("run", *ZERO, *FULL, "max_steps=2", "gradient_accumulation_steps=1")
    found = four_ranks.run(divided_scenarios.held_state, config=config)
    whole = sum(rank["state"] for rank in found)
    assert whole == 2 * found[0]["weights"]
    assert max(rank["state"] for rank in found) <= 1.1 * whole / 4


def test_a_step_that_is_skipped_changes_nothing_on_any_rank(settings, two_ranks):
    options = (*FULL, "max_steps=3")
    whole, _ = two_ranks.run(rank_scenarios.train, config=settings("whole", *DDP, *options), fault="nan@1:2")
    config = settings("divided", *ZERO, *options)
    for rank in two_ranks.run(rank_scenarios.train, config=config, sync=DIVIDED, fault="nan@1:2"):
        assert rank["losses"][1] is None
        same_run(rank, whole)


def test_backups_resume_on_any_number_of_ranks_with_and_without_it(settings, two_ranks, four_ranks, tmp_path):
    common = (*FULL, "model.weight_dtype=float64", "gradient_accumulation_steps=1", "ema.enabled=true")
    straight, _ = two_ranks.run(rank_scenarios.train, config=settings("straight", *DDP, *common, "max_steps=4"))
    half = (*common, "max_steps=2", "backup.at_end=true")
    two_ranks.run(rank_scenarios.train, config=settings("divided", *ZERO, *half), sync=DIVIDED)
    two_ranks.run(rank_scenarios.train, config=settings("whole", *DDP, *half))
    backup = tmp_path / "divided" / "backup" / "step-000000002"
    parts = [load_tensors(backup / f"optimizer-0000{number}-of-00002.safetensors") for number in (1, 2)]
    assert not parts[0].keys() & parts[1].keys()
    assert {path.name for path in backup.glob("[em]*.safetensors")} == {"model.safetensors", "ema.safetensors"}
    resumed = {
        "same": ("divided", two_ranks, ZERO, DIVIDED),
        "on four": ("divided", four_ranks, ZERO, DIVIDED),
        "without it": ("divided", two_ranks, DDP, {}),
        "only then": ("whole", two_ranks, ZERO, DIVIDED),
        "sharded": ("divided", two_ranks, ("distributed_strategy=fsdp",), {"strategy": "fsdp"}),
    }
    for name, (source, ranks, strategy, sync) in resumed.items():
        shutil.copytree(tmp_path / source, tmp_path / name)
        config = settings(name, *strategy, *common, "max_steps=4")
        for rank in ranks.run(rank_scenarios.train, config=config, sync=sync, resume=True):
            assert rank["steps"] == [3, 4]
            assert rank["losses"] == pytest.approx(straight["losses"][2:], rel=1e-9)
            assert rank["norms"] == pytest.approx(straight["norms"][2:], rel=1e-8)
            if ranks is two_ranks and "fsdp" not in strategy[0]:
                assert (rank["digest"], rank["ema"]) == (straight["digest"], straight["ema"])


def test_it_is_refused_without_a_folder_that_all_ranks_share(settings, two_ranks):
    config = settings("run", *ZERO, *LORA)
    for error in two_ranks.run(divided_scenarios.refuse_own_workspace, config=config):
        assert error.startswith("ddp_shard_optimizer: each GPU writes its part of the optimizer's state")


def test_it_is_refused_for_optimizers_that_need_all_of_their_state(settings, two_ranks):
    config = settings(
        "run", *ZERO, *LORA, "optimizer.name=prodigy", "optimizer.learning_rate=1", "enable_multi_gpu=false"
    )
    for error in two_ranks.run(divided_scenarios.refuse_start, config=config):
        assert error.startswith("optimizer.name prodigy with ddp_shard_optimizer: it needs the state of all weights")
