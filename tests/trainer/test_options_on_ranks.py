"""Training options on several ranks: split validation, equal rounding, replayed passes."""

from __future__ import annotations

import pytest

from modules.config.files import save_config
from tests.support import rank_scenarios
from tests.support.option_scenarios import train_and_validate, train_rounded
from tests.support.RankPool import run_alone

SETTINGS = (
    "batch_size=8",
    "batch_size_mode=global",
    "model.weight_dtype=float64",
    "max_steps=2",
    "validation.every=1",
    "validation.unit=steps",
    "ema.enabled=true",
    "backup.at_end=false",
    "sampling.at_end=true",
    "sampling.samples.0.prompt=a cat",
    "sampling.samples.0.width=32",
    "sampling.samples.0.height=32",
    "sampling.samples.0.steps=1",
)


def test_ranks_measure_the_loss_of_one_rank_and_rank_0_tells_it(
    make_config, picture_folder, two_ranks, four_ranks, tmp_path
):
    held_out = picture_folder(((32, 32), (48, 32), (32, 32)), name="held_out")
    settings = (*SETTINGS, f"concepts.1.path={held_out}", "concepts.1.validation=true")
    told = {}
    for name, run in {"one": run_alone, "two": two_ranks.run, "four": four_ranks.run}.items():
        config = make_config(*settings, f"workspace_dir={tmp_path / name}")
        save_config(config, tmp_path / f"{name}.yaml")
        ranks = run(train_and_validate, config=str(tmp_path / f"{name}.yaml"))
        ranks = [ranks] if name == "one" else ranks
        told[name] = ranks[0]["validations"]
        assert all(other["validations"] == other["rounds"] == [] for other in ranks[1:])
        assert [folder.rsplit("-", 1)[1] for folder in ranks[0]["rounds"]] == ["000000002"]
        if name == "four":
            # with three validation images, one rank has no batch, but still takes part
            assert sorted(rank["batches"] for rank in ranks) == [0, 1, 1, 1]
    assert [told_of[:2] for told_of in told["one"]] == [(1, 3), (2, 3)]
    for name in ("two", "four"):
        for own, expected in zip(told[name], told["one"], strict=True):
            assert own == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("optimizer", ["adamw", "schedule_free"])
def test_ranks_round_alike_by_chance(optimizer, two_ranks):
    first, second = two_ranks.run(train_rounded, optimizer=optimizer)
    assert first == second
    assert first != run_alone(train_rounded, optimizer=optimizer)  # one rank has only half of the data


def test_ranks_that_replay_their_passes_train_bit_for_bit_as_with_ddp(settings, two_ranks):
    """With two micro-batches in a step, steps of mixed shapes, dropout and clipping."""
    options = ("distributed_strategy=ddp", "max_steps=8", "data.bucket_step=8", "ema.enabled=true", "lora.dropout=0.1")
    usual, _ = two_ranks.run(rank_scenarios.train, config=settings("ddp", *options))
    config = settings("graphs", *options, "model.cuda_graphs=on")
    first, second = two_ranks.run(rank_scenarios.train_captured, config=config)
    for rank in (first, second):
        assert rank["captured"]
        assert rank["replays"] > rank["captured"]
        assert not rank["warnings"]
        assert (rank["digest"], rank["ema"]) == (usual["digest"], usual["ema"])
    assert first["losses"] == usual["losses"]
