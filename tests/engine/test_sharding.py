"""What ranks share, in training and in checkpoints; the curves are those of ranks that share nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from modules.weights.safe import load_tensors, save_tensors
from tests.support import engine_sharding_scenarios as scenarios
from tests.support.RankPool import run_alone

DDP, FSDP, ZERO = ({"strategy": name} for name in ("ddp", "fsdp", "zero1"))
HSDP = {"strategy": "hsdp", "shard_group_size": 2}


@pytest.fixture
def train(tmp_path, two_ranks, four_ranks):
    """Trains on 1, 2 or 4 ranks with eight samples in a step; returns what each rank found."""

    def train(num_ranks: int, name: str, engine: dict, model: str = "transformer", **options) -> list[dict]:
        arguments = {"model": model, "folder": str(tmp_path), "batch_size": 8 // num_ranks, **options}
        arguments["engine"] = {"experiment_name": name, **engine}
        if num_ranks == 1:
            return [run_alone(scenarios.train, **arguments)]
        return (two_ranks if num_ranks == 2 else four_ranks).run(scenarios.train, **arguments)

    return train


def assert_same_training(found: list[dict], expected: dict) -> None:
    for rank in found:
        for figure in ("losses", "validation", "predicted"):
            assert rank[figure] == pytest.approx(expected[figure], rel=1e-9, abs=1e-12), figure
        assert rank["norms"] == pytest.approx(expected["norms"], rel=1e-9)
    own, others = (load_tensors(Path(one["checkpoint"]) / "model.safetensors") for one in (found[0], expected))
    assert own.keys() == others.keys()
    for name, value in others.items():
        torch.testing.assert_close(own[name], value, rtol=1e-9, atol=1e-12)


def assert_holds_share(found: list[dict], shared: dict[str, float]) -> None:
    """shared: what -> the share of each rank; of anything else, each has all."""
    for rank in found:
        for what, (held, full) in rank["held"].items():
            share = shared.get(what, 1.0)
            assert 0.8 * share * full < held < (1.35 if share < 1 else 1.0) * share * full + 1, (
                what
            )  # shards are padded


RESNET = {"model": "resnet", "optimizer": "SGD"}
WHOLE = {"parameters": 0.5, "gradients": 0.5, "optimizer state": 0.5}


@pytest.mark.parametrize(
    ("num_ranks", "engine", "shared", "options"),
    [
        (2, FSDP, WHOLE, {"model": "transformer", "gradient_accumulation_steps": 2}),
        (2, {**FSDP, "activation_checkpointing": True}, WHOLE, RESNET),
        (2, ZERO, {"optimizer state": 0.5}, {"model": "transformer"}),
        pytest.param(2, ZERO, {"optimizer state": 0.5}, RESNET, marks=pytest.mark.proof),
        pytest.param(4, HSDP, WHOLE, {"model": "transformer"}, marks=pytest.mark.proof),
        (4, {**HSDP, "shard_blocks": None}, WHOLE, RESNET),
    ],
    ids=["fsdp-transformer", "fsdp-resnet", "zero1-transformer", "zero1-resnet", "hsdp-transformer", "hsdp-resnet"],
)
def test_ranks_that_share_train_as_one_does_and_hold_their_parts(num_ranks, engine, shared, options, train):
    averaged = {"use_ema": True, "ema_decay": 0.9}
    expected = train(1, "one", {**DDP, **averaged}, **options)[0]
    assert min(expected["norms"]) > 0.05  # every step is clipped
    found = train(num_ranks, "shared", {**engine, **averaged}, **options)
    assert_same_training(found, expected)
    assert_holds_share(found, shared)


def test_a_checkpoint_in_parts_is_resumed_with_any_strategy_on_any_number_of_ranks(train, tmp_path):
    averaged = {"use_ema": True, "ema_decay": 0.9}
    straight = train(1, "straight", {**DDP, **averaged})[0]
    starts = {
        "of one": train(1, "of one", {**DDP, **averaged}, epochs=1),
        "of fsdp": train(2, "of fsdp", {**FSDP, **averaged}, epochs=1),
        "of zero1": train(2, "of zero1", {**ZERO, **averaged}, epochs=1),
    }
    files = {
        name: {path.stem for path in Path(start[0]["checkpoint"]).glob("*.safetensors")}
        for name, start in starts.items()
    }
    assert files == {
        "of one": {"model", "optimizer", "ema", "training"},
        "of fsdp": {"model"}
        | {f"{kind}-0000{n}-of-00002" for kind in ("optimizer", "ema", "training") for n in (1, 2)},
        "of zero1": {"model", "ema", "training", "optimizer-00001-of-00002", "optimizer-00002-of-00002"},
    }
    for start, num_ranks, engine in (
        ("of one", 2, FSDP),
        ("of one", 2, ZERO),
        ("of fsdp", 1, DDP),
        ("of fsdp", 4, HSDP),
        ("of zero1", 1, DDP),
    ):
        name = f"{start} by {engine['strategy']}"
        shutil.copytree(tmp_path / start, tmp_path / name)
        resumed = train(num_ranks, name, {**engine, **averaged}, resume=True)
        found = [{**rank, "norms": [*straight["norms"][:4], *rank["norms"]]} for rank in resumed]
        assert_same_training(found, straight)


def test_the_best_checkpoints_are_kept_in_parts_and_resumed_by_one_rank(train, tmp_path):
    straight = train(1, "straight", DDP, epochs=3)[0]
    losses = straight["validation"][:3]
    assert losses == sorted(losses, reverse=True)  # each epoch is the best so far
    first, _ = train(2, "top", FSDP, epochs=3, save_top_k=2, save_last=False)
    found = [Path(path) for path in first["top"]]
    assert [path.parent.name.rpartition("-val_loss-")[0] for path in found] == ["epoch-3", "epoch-2"]
    assert sorted(path.parent for path in found) == sorted((tmp_path / "top" / "checkpoints" / "top").iterdir())
    parts = {"model", *(f"optimizer-0000{number}-of-00002" for number in (1, 2))}
    assert [{path.stem for path in folder.glob("*.safetensors")} for folder in found] == [parts, parts]
    shutil.rmtree(found[0].parent)
    (resumed,) = train(1, "top", DDP, epochs=3, save_top_k=2, resume="best")
    assert resumed["losses"] == pytest.approx(straight["losses"], rel=1e-9)
    assert resumed["predicted"] == pytest.approx(straight["predicted"], rel=1e-9)


def test_a_model_built_without_memory_starts_from_the_same_values_on_any_ranks(train, tmp_path):
    built = {"device": "meta", "seed": 3}
    alone = train(1, "alone", {**DDP, **built}, "resnet", epochs=1)[0]
    assert_same_training(train(2, "fsdp", {**FSDP, **built}, "resnet", epochs=1), alone)
    first = tmp_path / "first.safetensors"
    save_tensors(first, scenarios.resnet().double().state_dict())
    given = {"init_weights": str(first), "device": "meta"}
    straight = train(1, "straight", {**DDP, **given}, "resnet", epochs=1)[0]
    assert straight["losses"] != pytest.approx(alone["losses"], rel=1e-6)
    assert_same_training(train(2, "file", {**FSDP, **given}, "resnet", epochs=1), straight)


def test_in_low_precision_a_shared_model_stays_close_to_that_of_one_rank(train):
    amp = {"use_amp": True, "amp_dtype": "bfloat16"}
    expected = train(1, "one", {**DDP, **amp})[0]
    for rank in train(2, "shared", {**FSDP, **amp}):
        assert rank["losses"] == pytest.approx(expected["losses"], rel=2e-2)
        assert rank["losses"] != pytest.approx(expected["losses"], rel=1e-6)  # otherwise nothing was rounded


def test_what_ranks_can_not_share_is_refused(two_ranks, tmp_path):
    found = {
        name: two_ranks.run(scenarios.refusal, folder=str(tmp_path), **arguments)
        for name, arguments in {
            "early": {"engine": FSDP, "early": True},
            "matrices": {"engine": FSDP},
            "groups": {"engine": {"strategy": "hsdp", "shard_group_size": 3}},
            "several": {"engine": FSDP, "several": True},
            "around": {"engine": FSDP, "around": True},
            "in ram": {"engine": {**FSDP, "optimizer_state_in_ram": True}},
        }.items()
    }
    said = {
        "early": "optimizer: it has parameters that are not the model's; create it with model.parameters() after the "
        "engine, which replaces them.",
        "matrices": "optimizer: Adafactor needs whole matrices, of which each rank has some rows; use AdamW, or "
        "strategy='zero1'.",
        "groups": "shard_group_size: 2 ranks can't be divided into groups of 3; choose a divisor of their number, or "
        "strategy='fsdp'.",
        "several": "optimizer: several optimizers can't step weights that ranks share; use strategy='ddp' or 'zero1', "
        "or one optimizer.",
        "around": "step_fn: it uses weights outside of the model's forward, where each rank has only a part of them; "
        "do it in forward, or use strategy='zero1' or 'ddp'.",
        "in ram": "optimizer_state_in_ram: with strategy 'fsdp', each rank has only its part of the state; leave it "
        "out, or use 'zero1' or 'ddp'.",
    }
    assert found == {name: [text, text] for name, text in said.items()}
