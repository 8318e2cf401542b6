"""Ranks that share a model's weights (FSDP) train, save and resume like ranks that each hold all of them (DDP).

On a transformer, whose few modules are sharded in a quarter of the time that a U-Net takes; what it may differ in is
tested with that, too. test_sharding_proof.py has all combinations.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modules.weights.safe import load_tensors
from tests.support import rank_scenarios, sharding_scenarios
from tests.support.RankPool import run_alone

FSDP = {"strategy": "fsdp"}
HSDP = {"strategy": "hsdp", "sharing_ranks": 2}
FULL, LORA = ("method=full", "optimizer.learning_rate=1e-4"), ("method=lora", "optimizer.learning_rate=1e-3")
DOUBLE = "model.weight_dtype=float64"


@pytest.fixture
def settings(settings):
    return partial(settings, family="flux1")


def model_tensors(run: Path) -> dict[str, torch.Tensor]:
    """All tensors of the saved models, by file and name."""
    return {
        f"{path.relative_to(run / 'models')}/{name}": value
        for path in sorted((run / "models").rglob("*.safetensors"))
        for name, value in load_tensors(path).items()
    }


def assert_same_models(run: Path, expected: Path, rtol: float = 1e-9, atol: float = 1e-12) -> None:
    own, others = model_tensors(run), model_tensors(expected)
    assert own.keys() == others.keys() != set()
    for name, value in others.items():
        torch.testing.assert_close(own[name], value, rtol=rtol, atol=atol)


# --- the same curve and the same files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("sd15", (*LORA, "lora.dora=true")),
        ("sd15", (*LORA, "lora.adapter=lokr", "lora.targets=linear_conv", "lora.train_norms=true")),
        ("flux1", (*FULL, "model.gradient_checkpointing=true", "output.format=both")),
        pytest.param("sd15", (*FULL, "output.format=both"), marks=pytest.mark.proof),
    ],
    ids=["unet lora", "unet lokr", "transformer full", "unet full"],
)
def test_sharded_ranks_give_the_curve_and_the_files_of_replicated_ones(family, options, settings, two_ranks, tmp_path):
    options = (*options, DOUBLE, "max_steps=4", "output.dtype=float32", "ema.enabled=true", "output.save_ema=both")
    replicated, _ = two_ranks.run(rank_scenarios.train, config=settings("ddp", *options, family=family))
    config = settings("fsdp", *options, family=family)
    first, second = two_ranks.run(rank_scenarios.train, config=config, sync=FSDP)
    assert torch.tensor(replicated["losses"]).std() > 1e-3  # a flat curve would prove nothing
    assert min(replicated["norms"]) > 0.05  # every step is clipped
    assert first["losses"] == pytest.approx(replicated["losses"], rel=1e-9)
    assert first["norms"] == pytest.approx(replicated["norms"], rel=1e-8)
    assert (first["digest"], first["ema"]) == (second["digest"], second["ema"])
    assert first["digest"] != first["ema"]
    assert first["saved"] == replicated["saved"]
    assert_same_models(tmp_path / "fsdp", tmp_path / "ddp", rtol=1e-6, atol=1e-9)  # they are saved in float32
    for path in (tmp_path / "ddp" / "models").rglob("*.json"):
        assert (tmp_path / "fsdp" / path.relative_to(tmp_path / "ddp")).read_bytes() == path.read_bytes()


@pytest.mark.proof
def test_four_ranks_one_without_samples_give_the_curve_of_one(settings, four_ranks):
    alone = run_alone(rank_scenarios.train, config=settings("one", *FULL, DOUBLE, "max_steps=4", family="sd15"))
    options = (*FULL, DOUBLE, "max_steps=4", "gradient_accumulation_steps=1")
    ranks = four_ranks.run(rank_scenarios.train, config=settings("four", *options, family="sd15"), sync=FSDP)
    assert ranks[0]["samples"] == [8, 3, 8, 3]
    assert ranks[0]["losses"] == pytest.approx(alone["losses"], rel=1e-9)
    assert ranks[0]["norms"] == pytest.approx(alone["norms"], rel=1e-8)
    assert len({rank["digest"] for rank in ranks}) == 1


@pytest.mark.parametrize(
    ("family", "options"),
    [("flux1", FULL), pytest.param("sd15", LORA, marks=pytest.mark.proof)],
    ids=["transformer full", "unet lora"],
)
def test_groups_of_ranks_that_share_a_model_give_the_curve_and_the_files_of_one(
    family, options, settings, four_ranks, tmp_path
):
    options = (*options, DOUBLE, "max_steps=4", "output.dtype=float32", "ema.enabled=true")
    one = settings("one", *options, "gradient_accumulation_steps=1", family=family)
    alone = run_alone(rank_scenarios.train, config=one)
    ranks = four_ranks.run(rank_scenarios.train, config=settings("four", *options, family=family), sync=HSDP)
    assert min(alone["norms"]) > 0.05  # every step is clipped
    assert ranks[0]["losses"] == pytest.approx(alone["losses"], rel=1e-9)
    assert ranks[0]["norms"] == pytest.approx(alone["norms"], rel=1e-8)
    assert len({(rank["digest"], rank["ema"]) for rank in ranks}) == 1
    assert_same_models(tmp_path / "four", tmp_path / "one", rtol=1e-6, atol=1e-9)


def test_in_float32_the_curve_is_that_of_replicated_ranks(settings, two_ranks):
    """In groups of a single rank."""
    options = (*LORA, "max_steps=4", "ema.enabled=true")
    expected = two_ranks.run(rank_scenarios.train, config=settings("ddp", *options))[0]
    sync = {"strategy": "hsdp", "sharing_ranks": 1}
    for rank in two_ranks.run(rank_scenarios.train, config=settings("shared", *options), sync=sync):
        assert rank["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert rank["norms"] == pytest.approx(expected["norms"], rel=1e-4)


@pytest.mark.parametrize("optimizer", ["schedule_free", "lion", "ademamix"])
def test_optimizers_step_parts_of_weights_as_whole_ones(optimizer, settings, two_ranks, tmp_path):
    options = (*FULL, f"optimizer.name={optimizer}", DOUBLE, "max_steps=4", "output.dtype=float32")
    run_alone(rank_scenarios.train, config=settings("one", *options))
    two_ranks.run(rank_scenarios.train, config=settings("fsdp", *options), sync=FSDP)
    assert_same_models(tmp_path / "fsdp", tmp_path / "one", rtol=1e-5, atol=1e-8)


def test_the_frozen_model_is_used_between_passes_with_adapters(settings, two_ranks, picture_folder):
    prior = (f"concepts.1.path={picture_folder(name='prior')}", "concepts.1.regularisation=true")
    options = (*LORA, DOUBLE, "loss.prior_by_frozen_model=true", *prior, "max_steps=4")
    alone = run_alone(rank_scenarios.train, config=settings("one", *options))
    first, _ = two_ranks.run(rank_scenarios.train, config=settings("fsdp", *options), sync=FSDP)
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-9)
    assert first["norms"] == pytest.approx(alone["norms"], rel=1e-8)


@pytest.mark.parametrize(("what", "precision"), [("compute_precision", "bf16"), ("reduce_precision", "fp16")])
def test_low_precision_stays_close_to_one_rank(what, precision, settings, two_ranks):
    mixed = precision if what == "compute_precision" else "no"
    options = (*LORA, f"model.mixed_precision={mixed}", "max_steps=4")
    alone = run_alone(rank_scenarios.train, config=settings("one", *options))
    sync = {**FSDP, what: precision}
    first, second = two_ranks.run(rank_scenarios.train, config=settings("fsdp", *options), sync=sync)
    assert [loss is None for loss in first["losses"]] == [loss is None for loss in alone["losses"]]
    found, expected = ([norm for norm in run["norms"] if norm] for run in (first, alone))
    assert found == pytest.approx(expected, rel=5e-2)
    assert found != pytest.approx(expected, rel=1e-6)  # otherwise nothing was rounded
    assert first["digest"] == second["digest"]


def test_in_float32_nothing_is_rounded_lower_and_a_step_that_fails_on_one_rank_is_skipped_by_all(settings, two_ranks):
    options = (*FULL, "max_steps=4")
    alone = run_alone(rank_scenarios.train, config=settings("one", *options), fault="nan@0:2")
    config = settings("fsdp", *options)
    for rank in two_ranks.run(rank_scenarios.train, config=config, sync=FSDP, fault="nan@1:2"):
        assert [step for step, loss in enumerate(rank["losses"], 1) if loss is None] == [2]
        assert rank["losses"][2:] == pytest.approx(alone["losses"][2:], rel=1e-5)
        assert rank["finite"]


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "pool"), [("sd15", "two"), ("flux1", "four")])
def test_each_rank_holds_its_share_of_parameters_gradients_and_states(family, pool, settings, two_ranks, four_ranks):
    options = (*FULL, "ema.enabled=true", "max_steps=2", "gradient_accumulation_steps=1")
    ranks = {"two": two_ranks, "four": four_ranks}[pool]
    for found in ranks.run(sharding_scenarios.held_bytes, config=settings("run", *options, family=family)):
        assert found.keys() == {"parameters", "gradients", "optimizer state", "ema"}
        for held, full in found.values():
            assert 0.8 * full < held * ranks.world_size < 1.1 * full


@pytest.mark.parametrize(
    ("options", "pool", "sync"),
    [(FULL, "two", FSDP), (FULL, "four", HSDP), (LORA, "two", FSDP)],
    ids=["full", "groups", "lora"],
)
def test_no_rank_ever_holds_the_whole_model_to_load_it(options, pool, sync, settings, two_ranks, four_ranks):
    options = (*options, "gradient_accumulation_steps=1", "model.weight_dtype=bfloat16")  # not that of the files
    ranks = {"two": two_ranks, "four": four_ranks}[pool]
    sharing = sync.get("sharing_ranks", ranks.world_size)
    for found in ranks.run(sharding_scenarios.load, config=settings("run", *options, family="flux1"), sync=sync):
        assert found["held"] < 0.01 * found["full"]  # until it is sharded
        assert found["largest"] < 0.2 * found["full"]  # of the tensors that are compared one at a time
        assert 0.8 * found["full"] < found["read"] * sharing < 1.1 * found["full"]  # to be sharded


def test_in_groups_each_rank_holds_its_share_of_the_copy_of_its_group(settings, four_ranks):
    config = settings("run", *FULL, "ema.enabled=true", "max_steps=2")
    for found in four_ranks.run(sharding_scenarios.held_bytes, config=config, sync=HSDP):
        for held, full in found.values():
            assert 0.4 * full < held < 0.55 * full


def test_under_a_lora_the_frozen_model_is_shared_too(settings, two_ranks):
    config = settings("run", *LORA, "ema.enabled=true", "max_steps=2", family="flux1")
    for found in two_ranks.run(sharding_scenarios.held_bytes, config=config):
        held, full = found["parameters"]
        assert 0.4 * full < held < 0.55 * full


# --- resuming ---------------------------------------------------------------------------------------------------------


def test_backups_resume_on_any_number_of_ranks_with_either_strategy(settings, two_ranks, four_ranks, tmp_path):
    options = (*FULL, DOUBLE, "gradient_accumulation_steps=1", "ema.enabled=true", "output.dtype=float32")
    straight = run_alone(rank_scenarios.train, config=settings("straight", *options, "max_steps=6"))
    first_half = ("max_steps=3", "backup.at_end=true")
    two_ranks.run(rank_scenarios.train, config=settings("sharded", *options, *first_half), sync=FSDP)
    run_alone(rank_scenarios.train, config=settings("replicated", *options, *first_half))
    names = {path.name for path in (tmp_path / "sharded" / "backup" / "step-000000003").glob("*.safetensors")}
    kinds = ("model", "optimizer", "ema")
    assert names == {f"{kind}-0000{number}-of-00002.safetensors" for kind in kinds for number in (1, 2)}
    resumed = {
        "on 4": ("sharded", four_ranks, FSDP),
        "on 2 replicated": ("sharded", two_ranks, {}),
        "from replicated": ("replicated", two_ranks, FSDP),
        "in groups": ("sharded", four_ranks, HSDP),
    }
    for name, (source, ranks, sync) in resumed.items():
        shutil.copytree(tmp_path / source, tmp_path / name)
        config = settings(name, *options, "max_steps=6")
        first = ranks.run(rank_scenarios.train, config=config, sync=sync, resume=True)[0]
        assert first["steps"] == [4, 5, 6]
        assert first["losses"] == pytest.approx(straight["losses"][3:], rel=1e-9)
        assert first["norms"] == pytest.approx(straight["norms"][3:], rel=1e-8)
        for path in (tmp_path / "straight" / "models").rglob("*.safetensors"):
            own = load_tensors(tmp_path / name / "models" / "model" / path.relative_to(path.parents[1]))
            for key, value in load_tensors(path).items():
                torch.testing.assert_close(own[key], value, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("pool", "sync"), [("two", FSDP), ("four", HSDP)], ids=["2", "groups"])
def test_to_back_up_each_rank_writes_what_it_holds_and_gathers_nothing(pool, sync, settings, two_ranks, four_ranks):
    config = settings("run", *FULL, "ema.enabled=true", "max_steps=1", "gradient_accumulation_steps=1")
    ranks = {"two": two_ranks, "four": four_ranks}[pool]
    found = ranks.run(sharding_scenarios.back_up, config=config, sync=sync)
    sharing = sync.get("sharing_ranks", len(found))
    assert [bool(rank["files"]) for rank in found] == [number < sharing for number in range(len(found))]
    for rank in found:
        assert rank["gathers"] == 0
        for own, full in rank["files"].values():
            assert own < full * 1.1 / sharing
    for kind in ("model", "optimizer", "ema"):
        sizes = [rank["files"][kind] for rank in found[:sharing]]
        assert sum(own for own, _ in sizes) == sizes[0][1]


def test_without_a_shared_folder_rank_0_writes_the_backup_alone(settings, two_ranks, tmp_path):
    config = settings("run", *LORA, "max_steps=1", "backup.at_end=true")
    two_ranks.run(rank_scenarios.train, config=config, sync=FSDP, own_workspace=True)
    backup = tmp_path / "run" / "backup" / "step-000000001"
    assert {path.name for path in backup.glob("*.safetensors")} == {"model.safetensors", "optimizer.safetensors"}
    assert not (tmp_path / "run-rank-1" / "backup" / "step-000000001").exists()


# --- passes without gradients -----------------------------------------------------------------------------------------


def test_samples_and_validation_are_those_of_replicated_ranks(settings, two_ranks, tmp_path):
    options = (
        *LORA,
        "max_steps=4",
        "ema.enabled=true",
        "validation.unit=steps",
        "validation.every=2",
        "data.validation_share=0.3",
        "sampling.samples.0.prompt=a photo of a cat",
        "sampling.samples.0.width=32",
        "sampling.samples.0.height=32",
        "sampling.samples.0.steps=1",
        "sampling.samples.0.count=3",
        "sampling.at_start=true",
        "sampling.at_end=true",
    )
    runs = {}
    for name, sync in {"ddp": {}, "fsdp": FSDP}.items():
        runs[name] = two_ranks.run(rank_scenarios.train, config=settings(name, *options), sync=sync)
    assert len(runs["ddp"][0]["validations"]) == 2
    for rank in (0, 1):
        own, expected = runs["fsdp"][rank], runs["ddp"][rank]
        assert own["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert sorted(own["samples_made"]) == sorted(expected["samples_made"])
        for validation, other in zip(own["validations"], expected["validations"], strict=True):
            assert validation == pytest.approx(other, rel=1e-5)
    images = sorted((tmp_path / "ddp" / "samples").rglob("*.png"))
    assert len(images) == 6
    for path in images:
        own = tmp_path / "fsdp" / path.relative_to(tmp_path / "ddp")
        assert np.abs(pixels(own) - pixels(path)).max() <= 1


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image).astype(int)


def test_a_stop_during_sampling_ends_it_on_all_ranks_after_the_same_round_and_a_resume_makes_the_rest(
    settings, two_ranks
):
    sample = ("prompt=a photo of a cat", "width=32", "height=32", "steps=1", "count=6")
    samples = (*(f"sampling.samples.0.{one}" for one in sample), "sampling.at_start=true", "sampling.batch_size=1")
    config = settings("run", *LORA, *samples, "max_steps=1")
    stopped = two_ranks.run(rank_scenarios.stop_while_sampling, config=config, strategy="fsdp")
    assert [(rank["stopped"], rank["step"]) for rank in stopped] == [(True, 0)] * 2
    resumed = two_ranks.run(rank_scenarios.train, config=config, sync=FSDP, resume=True)
    assert [rank["step"] for rank in resumed] == [1, 1]
    made = [sorted(name[:3] for rank in ranks for name in rank["samples_made"]) for ranks in (stopped, resumed)]
    assert made == [["000", "001"], ["002", "003", "004", "005"]]


# --- settings and what is refused -------------------------------------------------------------------------------------


def test_the_setting_chooses_the_strategy_and_its_precisions(two_ranks):
    expected = {
        "ddp": ["DataParallelRuntime", "no", "fp32", None, True],
        "auto": ["DataParallelRuntime", "no", "fp32", None, False],  # the ranks have no GPUs
        "fsdp": ["ShardedRuntime", "bf16", "fp16", None, False],
        "hsdp": ["ShardedRuntime", "no", "fp32", 2, False],  # both ranks are on this machine
    }
    assert two_ranks.run(sharding_scenarios.create_runtimes) == [expected] * 2


def test_ranks_are_refused_what_they_do_not_support_even_if_multi_gpu_is_off(settings, two_ranks):
    config = settings("run", "optimizer.name=sgd", "enable_multi_gpu=false")
    for error in two_ranks.run(sharding_scenarios.refuse_start, config=config):
        assert error.startswith("optimizer.name sgd with distributed_strategy fsdp")


def test_modules_that_cannot_be_sharded_are_refused(two_ranks):
    for mixed, groups in two_ranks.run(sharding_scenarios.refuse_modules):
        assert mixed == (
            "The trained weights are in float32 and float64, and to be sharded all must have the same dtype: set "
            "model.weight_dtype to float32, or distributed_strategy to ddp."
        )
        assert groups == (
            "distributed_strategy hsdp: 2 ranks can't be divided into groups of 3; choose a sharding_group_size that "
            "divides their number, or set distributed_strategy to fsdp."
        )
