from __future__ import annotations

import itertools

import pytest
import torch

from tests.support import rank_scenarios
from tests.support.RankPool import run_alone


def test_ranks_exchange_plain_data_and_sums(two_ranks):
    first, second = two_ranks.run(rank_scenarios.exchange)
    assert first["gathered"] == second["gathered"] == [{"rank": 0}, {"rank": 1}]
    assert first["told"] == second["told"] == [0, "plain"]
    main_value = torch.tensor(0.1).item()  # rounded to float32
    assert first["total"] == second["total"] == [2.0, 1.0, main_value]
    assert (first["ranks"], second["ranks"]) == ([0, 0, 2, True], [1, 1, 2, False])


@pytest.mark.parametrize("speaker", [0, 1])
def test_a_stop_announced_by_one_rank_reaches_all_ranks_of_its_run_only(two_ranks, speaker):
    assert two_ranks.run(rank_scenarios.announce_stop, speaker=speaker) == [False, False]


def test_a_wait_beats_and_ends_with_an_exception_from_on_wait(two_ranks):
    assert two_ranks.run(rank_scenarios.interrupt_a_wait) == ["StopRequested: ", ""]


@pytest.mark.parametrize("after", [False, True])
def test_ranks_that_train_different_denoisers_equal_one_process(after, two_ranks):
    # the denoisers of a step's four micro-batches, two per rank: both the same, one each, one unused, one on one rank
    patterns = [list(numbers) for numbers in itertools.product((0, 1), repeat=4)]
    chosen = patterns + patterns[::-1]
    alone = run_alone(rank_scenarios.train_two_denoisers, chosen=chosen)
    first, second = two_ranks.run(rank_scenarios.train_two_denoisers, chosen=chosen, exchanges_after=after)
    assert first["digest"] == second["digest"]
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-9)
    assert first["norms"] == pytest.approx(alone["norms"], rel=1e-9)
    for own, expected in zip(first["weights"], alone["weights"], strict=True):
        for row, expected_row in zip(own, expected, strict=True):
            assert row == pytest.approx(expected_row, rel=1e-9)


@pytest.mark.parametrize("after", [False, True])
def test_frozen_parameters_are_neither_broadcast_nor_reduced(after, two_ranks):
    first, second = two_ranks.run(rank_scenarios.keep_what_is_frozen, exchanges_after=after)
    assert first["frozen"] != second["frozen"]
    assert first["shift"] == second["shift"] == [0.0, 0.0]  # a buffer: rank 0's
    assert first["trained"] == second["trained"]
    assert not first["has_gradient"]


@pytest.mark.parametrize(("strategy", "gathers"), [("ddp", 0), ("fsdp", 1)])
def test_a_step_has_one_collective_besides_those_of_its_passes_and_no_sync(strategy, gathers, two_ranks):
    """The backward pass finds weights that no other layer follows as the forward pass has gathered them."""
    for counts in two_ranks.run(rank_scenarios.count_collectives, steps=5, strategy=strategy):
        assert counts.pop("all_reduce") == 5
        assert counts.pop("foreach_all_gather") == 5 * 2 * gathers
        assert set(counts.values()) == {0}


@pytest.mark.parametrize("stopper", [0, 1])
def test_a_stop_at_any_time_ends_all_ranks_at_the_same_step(two_ranks, stopper):
    first, second = two_ranks.run(rank_scenarios.stop_many_times, trials=50, stopper=stopper)
    assert first == second
    assert len(set(first)) > 5  # at many different steps


@pytest.mark.parametrize("stopper", [0, 1])
def test_either_all_ranks_begin_or_none_if_one_vetoes_the_start(two_ranks, stopper):
    first, second = two_ranks.run(rank_scenarios.begin_or_end, trials=40, stopper=stopper)
    assert first == second
    assert set(first) == {"began", "ended"}
