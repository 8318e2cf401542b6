"""Training with BatchNorm gives the same results on N ranks as on one."""

from __future__ import annotations

import pytest
import torch

from modules.config.files import save_config
from modules.weights.safe import load_tensors
from tests.support import batch_norm_scenarios as scenarios
from tests.support.RankPool import run_alone


def assert_same_training(ranks: list[dict], alone: dict, tolerance: float = 1e-9) -> None:
    for rank in ranks:
        assert rank["digest"] == ranks[0]["digest"]
        assert rank["samples"] == alone["samples"]
        assert rank["losses"] == pytest.approx(alone["losses"], rel=tolerance)
        assert rank["norms"] == pytest.approx(alone["norms"], rel=tolerance)
        assert rank["state"].keys() == alone["state"].keys()
        for name, values in alone["state"].items():
            assert rank["state"][name] == pytest.approx(values, rel=tolerance, abs=tolerance), name


@pytest.mark.parametrize(
    "sizes",
    [
        [[[3], [2]], [[4], [1]]],
        [[[2, 2], [2, 1]]],
        [[[3, 2], [2]], [[2], [1, 3, 2]]],
        [[[3], []], [[2, 2], []]],
    ],
    ids=["uneven", "accumulated", "unequal numbers of micro-batches", "a rank without samples"],
)
def test_two_ranks_with_batch_norm_equal_one(sizes, two_ranks):
    sizes = sizes * 10
    alone = run_alone(scenarios.train, sizes=sizes)
    assert torch.tensor(alone["losses"]).std() > 1e-3  # a flat curve would prove nothing
    assert_same_training(two_ranks.run(scenarios.train, sizes=sizes), alone)


def test_a_warm_up_pass_does_not_change_the_statistics(two_ranks):
    sizes = [[[3], []], [[2], [1]], [[3], [1]]]
    ranks = two_ranks.run(scenarios.train, sizes=sizes, sync={"static_graph": True})
    assert_same_training(ranks, run_alone(scenarios.train, sizes=sizes))


def test_recomputed_activations_are_synchronized_too(two_ranks):
    run = {"sizes": [[[3, 1], [2, 1]]] * 5, "net": {"recomputes": True}}
    assert_same_training(two_ranks.run(scenarios.train, **run), run_alone(scenarios.train, **run))


def test_a_backup_of_two_ranks_resumes_on_one_and_loads_into_the_bare_module(two_ranks, tmp_path):
    sizes = [[[3], [2]]] * 6
    two_ranks.run(scenarios.train, sizes=sizes[:3], save=str(tmp_path))
    alone = run_alone(scenarios.train, sizes=sizes)
    resumed = run_alone(scenarios.train, sizes=sizes, load=str(tmp_path))
    assert resumed["losses"] == pytest.approx(alone["losses"][3:], rel=1e-9)
    for name, values in alone["state"].items():
        assert resumed["state"][name] == pytest.approx(values, rel=1e-9, abs=1e-9), name

    net, saved = scenarios.norm_net(), load_tensors(tmp_path / "model.safetensors")
    missing, unexpected = net.load_state_dict(saved, strict=False)
    assert (missing, unexpected) == (["frozen.weight", "frozen.bias"], [])  # backups don't contain frozen parameters
    assert net.features[1].num_batches_tracked == 3
    assert net.frozen.num_batches_tracked == 0


def test_between_steps_a_rank_may_call_the_model_alone(two_ranks):
    first, second = two_ranks.run(scenarios.call_alone, seconds=60)
    assert first == second  # rank 0's call changes its statistics, which all ranks then adopt


def test_batch_norm_with_unused_parameters_is_refused_before_training(two_ranks):
    refusal = (
        "BatchNorm layers in training mode (such as features.1) must run on every rank in every pass, but a step may "
        "leave layers of this model unused: put them into evaluation mode, or train on one rank."
    )
    assert two_ranks.run(scenarios.set_up_with_unused_parts) == [refusal] * 2


def test_frozen_batch_norm_needs_no_collective(two_ranks):
    for counts in two_ranks.run(scenarios.train_frozen):
        assert counts == {"all_reduce": 1, "all_gather": 0, "broadcast": 0}


def test_a_denoiser_with_batch_norm_trains_on_ranks_with_different_shapes_and_empty_batches(
    make_config, two_ranks, tmp_path
):
    # nine samples per epoch in three shapes: steps of eight and of one
    options = ("method=full", "batch_size=8", "batch_size_mode=global", "concepts.0.repeats=0.82", "seed=2")
    save_config(make_config(*options), tmp_path / "run.yaml")
    first, second = two_ranks.run(scenarios.train_diffusion, config=str(tmp_path / "run.yaml"))
    assert second.pop("padding") == [False, True] * 2
    assert not any(first.pop("padding"))
    passes = list(zip(first.pop("passes"), second.pop("passes"), strict=True))
    assert any(own != other for own, other in passes)  # otherwise this would prove little
    assert first == second
    assert first["statistics"][2] == sum(map(max, passes))
