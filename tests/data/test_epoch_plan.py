"""A plan shows every sample of an epoch once, in whole steps, and does not know of ranks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.data.epoch_plan import count_samples, count_steps, plan_epoch, shard, shard_same_passes


@st.composite
def epochs(draw):
    """Arguments of plan_epoch for a random data set."""
    num_images = draw(st.integers(1, 60))
    concepts = draw(st.lists(st.integers(0, 3), min_size=num_images, max_size=num_images))
    per_concept = draw(st.lists(st.sampled_from([0.25, 0.5, 1, 1.3, 2, 2.5]), min_size=4, max_size=4))
    return {
        "bucket_index": np.array(draw(st.lists(st.integers(0, 4), min_size=num_images, max_size=num_images))),
        "repeats": np.array(per_concept)[concepts],
        "seed": draw(st.integers(0, 2**31 - 1)),
        "epoch": draw(st.integers(0, 1000)),
        "global_batch": draw(st.integers(1, 20)),
        "excluded": np.array(draw(st.lists(st.booleans(), min_size=num_images, max_size=num_images))),
        "concept_index": np.array(concepts),
    }


def rows(samples):
    return [tuple(row) for row in samples.tolist()]


@settings(max_examples=200, deadline=None)
@given(epochs())
def test_every_repeat_of_a_sample_comes_exactly_once(arguments):
    plan = plan_epoch(**arguments)
    shown = rows(plan.samples)
    assert len(shown) == len(set(shown))
    num_shown = np.bincount(plan.samples[:, 0], minlength=len(arguments["repeats"]))
    for sample_id, count in enumerate(num_shown):
        if arguments["excluded"][sample_id]:
            assert count == 0
            continue
        assert np.floor(arguments["repeats"][sample_id]) <= count <= np.ceil(arguments["repeats"][sample_id])
        assert all((sample_id, repeat) in shown for repeat in range(count))


@settings(max_examples=200, deadline=None)
@given(epochs())
def test_each_concept_comes_as_often_as_its_repeats_say(arguments):
    num_shown = np.bincount(plan_epoch(**arguments).samples[:, 0], minlength=len(arguments["repeats"]))
    for number in set(arguments["concept_index"].tolist()):
        pictures = (arguments["concept_index"] == number) & ~arguments["excluded"]
        assert abs(num_shown[pictures].sum() - arguments["repeats"][pictures].sum()) < 1


@settings(max_examples=200, deadline=None)
@given(epochs())
def test_every_step_but_the_last_has_the_global_batch(arguments):
    plan = plan_epoch(**arguments)
    sizes = [len(plan.step(i)) for i in range(plan.num_steps)]
    assert sum(sizes) == plan.num_samples
    assert all(size == arguments["global_batch"] for size in sizes[:-1])
    assert all(1 <= size <= arguments["global_batch"] for size in sizes)
    assert np.array_equal(np.concatenate([plan.samples[:0], *map(plan.step, range(plan.num_steps))]), plan.samples)


@settings(max_examples=100, deadline=None)
@given(epochs())
def test_the_counts_are_known_without_a_plan(arguments):
    plan = plan_epoch(**arguments)
    num_images = len(arguments["bucket_index"])
    counted = {name: arguments[name] for name in ("repeats", "excluded", "concept_index")}
    assert count_samples(num_images, **counted) == plan.num_samples
    assert count_steps(plan.num_samples, arguments["global_batch"]) == plan.num_steps


@settings(max_examples=200, deadline=None)
@given(epochs())
def test_a_bucket_mixes_with_others_only_in_its_remainder(arguments):
    plan, bucket, batch = plan_epoch(**arguments), arguments["bucket_index"], arguments["global_batch"]
    pure = np.zeros(5, int)
    for i in range(plan.num_steps):
        buckets = np.unique(bucket[plan.step(i)[:, 0]])
        if len(buckets) == 1 and len(plan.step(i)) == batch:
            pure[buckets[0]] += 1
    assert (pure >= np.bincount(bucket[plan.samples[:, 0]], minlength=5) // batch).all()


COSTS = np.array([1, 1, 3, 13, 40])  # of a sample of each bucket


@settings(max_examples=200, deadline=None)
@given(epochs(), st.integers(1, 8), st.integers(1, 4), st.booleans())
def test_ranks_share_each_step_without_loss_or_doubling(arguments, world_size, accumulation, same_passes):
    plan, bucket = plan_epoch(**arguments), arguments["bucket_index"]
    for i in range(plan.num_steps):
        step = plan.step(i)
        of_ranks = [(step, bucket, rank, world_size, accumulation, COSTS) for rank in range(world_size)]
        if same_passes:
            shares, counts = zip(*(shard_same_passes(*each) for each in of_ranks), strict=True)
            assert set(counts) == {max(map(len, shares))}
        else:
            shares = [shard(*each) for each in of_ranks]
        real = [row for share in shares for micro in share if micro.real for row in rows(micro.samples)]
        assert sorted(real) == sorted(rows(step))
        sizes = [sum(len(micro.samples) for micro in share if micro.real) for share in shares]
        most = -(-len(step) // world_size)
        for share, size in zip(shares, sizes, strict=True):
            assert share, "a rank without a micro-batch would leave the others waiting"
            if size == 0:
                assert [len(micro.samples) for micro in share] == [1]
            if same_passes:
                assert size <= most
            for micro in share:
                assert set(bucket[micro.samples[:, 0]]) == {micro.bucket}
                assert micro.real == (size > 0)
                assert 1 <= len(micro.samples) <= -(-most // accumulation)


def loads_of(step, bucket, world_size, costs=COSTS):
    """The cost of each rank's samples."""
    shares = [shard(step, bucket, rank, world_size, 1, costs) for rank in range(world_size)]
    return [sum(costs[micro.bucket] * len(micro.samples) for micro in share if micro.real) for share in shares]


@settings(max_examples=50, deadline=None)
@given(epochs(), st.integers(1, 8))
def test_no_rank_has_much_more_to_do_than_the_mean_and_equal_costs_are_equal_numbers(arguments, world_size):
    plan, bucket = plan_epoch(**arguments), arguments["bucket_index"]
    for i in range(plan.num_steps):
        cost = COSTS[bucket[plan.step(i)[:, 0]]]
        assert max(loads_of(plan.step(i), bucket, world_size)) < cost.mean() * len(cost) / world_size + cost.max()
        numbers = loads_of(plan.step(i), bucket, world_size, costs=np.ones(5, int))
        assert max(numbers) - min(numbers) <= 1


def step_of(*buckets):
    return np.stack((np.arange(len(buckets)), np.zeros(len(buckets), int)), axis=1), np.array(buckets)


def test_clips_are_divided_first_and_stills_fill_up_what_is_left():
    step, bucket = step_of(*[3] * 4, *[0] * 12)
    for rank in range(4):
        share = shard(step, bucket, rank, 4, 1, COSTS)
        assert [(micro.bucket, len(micro.samples)) for micro in share] == [(3, 1), (0, 3)]


def test_where_ranks_wait_for_each_other_in_each_pass_none_makes_many_small_ones():
    step, bucket = step_of(3, *[0] * 15)
    apart = [shard(step, bucket, rank, 2, 8, COSTS) for rank in range(2)]
    together = [shard_same_passes(step, bucket, rank, 2, 8, COSTS)[0] for rank in range(2)]
    sizes = [[sum(len(micro.samples) for micro in share) for share in shares] for shares in (apart, together)]
    assert sizes == [[2, 14], [8, 8]]


def test_a_rank_without_samples_runs_one_of_the_cheapest():
    step, bucket = step_of(3, 0)
    (placeholder,) = shard(step, bucket, 2, 3, 1, COSTS)
    assert (placeholder.bucket, placeholder.real) == (0, False)


def test_ranks_of_one_shape_run_as_many_micro_batches_as_asked():
    step = np.stack((np.arange(32), np.zeros(32, int)), axis=1)
    for rank in range(4):
        share = shard(step, np.zeros(32, int), rank, world_size=4, accumulation=2)
        assert [len(micro.samples) for micro in share] == [4, 4]


def test_a_mixed_step_is_cut_so_that_ranks_meet_few_shapes():
    step, bucket = step_of(0, 1, 0, 1, 0, 1, 0, 1)
    shares = [shard(step, bucket, rank, 2, 1, costs=[98, 100]) for rank in range(2)]
    assert [[(micro.bucket, len(micro.samples)) for micro in share] for share in shares] == [[(1, 4)], [(0, 4)]]


def test_a_rank_outside_the_world_is_refused():
    with pytest.raises(ValueError, match="rank 2 of 2"):
        shard(np.zeros((1, 2), int), np.zeros(1, int), rank=2, world_size=2, accumulation=1)


def test_ten_pictures_two_and_a_half_times_are_25_samples_and_another_half_each_epoch():
    drawn = []
    for epoch in range(20):
        plan = plan_epoch(np.zeros(10, int), 2.5, seed=1, epoch=epoch, global_batch=4)
        assert plan.num_samples == 25
        drawn.append(frozenset(plan.samples[plan.samples[:, 1] == 2, 0].tolist()))
        assert len(drawn[-1]) == 5
    assert len(set(drawn)) > 10
    assert frozenset.union(*drawn) == set(range(10))


def test_concepts_with_equal_repeats_draw_their_shares_apart():
    concept_index = np.repeat([0, 1], 10)
    for epoch in range(10):
        plan = plan_epoch(np.zeros(20, int), 0.5, 1, epoch, 4, concept_index=concept_index)
        assert np.bincount(concept_index[plan.samples[:, 0]]).tolist() == [5, 5]


def test_a_hundred_samples_in_steps_of_32_leave_four():
    plan = plan_epoch(np.arange(100) % 3, 1.0, seed=1, epoch=0, global_batch=32)
    assert [len(plan.step(i)) for i in range(plan.num_steps)] == [32, 32, 32, 4]


def test_fewer_pictures_than_a_step_are_one_step():
    plan = plan_epoch(np.array([0, 1, 1]), 1.0, seed=1, epoch=0, global_batch=32)
    assert [len(plan.step(i)) for i in range(plan.num_steps)] == [3]


def test_nothing_left_is_no_step():
    plan = plan_epoch(np.zeros(3, int), 1.0, 1, 0, 4, excluded=np.ones(3, bool))
    assert (plan.num_steps, plan.num_samples) == (0, 0)
    with pytest.raises(IndexError):
        plan.step(0)


def test_the_same_arguments_give_the_same_plan_and_other_epochs_and_seeds_other_orders():
    bucket = np.arange(64) % 2
    orders = [rows(plan_epoch(bucket, 1.0, seed, epoch, 8).samples) for seed in (1, 2) for epoch in range(3)]
    assert rows(plan_epoch(bucket, 1.0, 1, 0, 8).samples) == orders[0]
    assert len({tuple(order) for order in orders}) == 6
    assert all(sorted(order) == sorted(orders[0]) for order in orders)


def test_the_plan_never_changes():
    """A change here changes the order of every run that is resumed."""
    plan = plan_epoch(np.array([0, 1, 0, 1, 0]), 1.4, seed=42, epoch=3, global_batch=3)
    assert rows(plan.samples) == [(3, 0), (1, 0), (1, 1), (0, 0), (4, 0), (2, 0), (3, 1)]
    assert plan.step_starts.tolist() == [0, 3, 6, 7]


def test_every_bucket_is_in_the_smaller_last_step_at_times():
    bucket = np.repeat([0, 1, 2], 3)  # steps of 4, 4 and 1
    plans = [plan_epoch(bucket, 1.0, 1, epoch, 4) for epoch in range(40)]
    assert {b for plan in plans for b in bucket[plan.step(plan.num_steps - 1)[:, 0]].tolist()} == {0, 1, 2}


def test_steps_of_a_bucket_are_spread_over_the_epoch():
    bucket = np.repeat([0, 1], 400)
    plan = plan_epoch(bucket, 1.0, 1, 0, 4)
    of_step = [int(bucket[plan.step(i)[0, 0]]) for i in range(200)]
    assert 35 < sum(of_step[:100]) < 65


def test_a_million_pictures_are_planned_without_a_loop_over_samples():
    bucket = (np.arange(1_000_000) * 7919) % 30
    plan = plan_epoch(bucket, 1.0, 1, 0, 64)
    assert plan.num_steps == 15_625
    assert np.array_equal(np.sort(plan.samples[:, 0]), np.arange(1_000_000))


def test_over_the_epochs_each_concept_comes_as_often_as_its_repeats_say():
    concept_index = np.repeat([0, 1, 2, 3], [20, 3, 4, 2])
    repeats = np.array([1.0, 0.1, 0.3, 1.25])[concept_index]  # 20, 0.3, 1.2 and 2.5 samples
    counts = []
    for epoch in range(400):
        plan = plan_epoch(np.zeros(29, int), repeats, 1, epoch, 4, concept_index=concept_index)
        counts.append(np.bincount(concept_index[plan.samples[:, 0]], minlength=4))
        assert plan.num_samples == count_samples(29, repeats, concept_index=concept_index) == 24
    assert np.mean(counts, axis=0) == pytest.approx([20, 0.3, 1.2, 2.5], abs=0.08)
    assert {count[0] for count in counts} == {20}


def test_a_concept_of_less_than_half_a_sample_is_not_lost_beside_others():
    concept_index = np.repeat([0, 1], [9, 1])
    plan = plan_epoch(np.zeros(10, int), np.array([1.0] * 9 + [0.417]), 1, 0, 4, concept_index=concept_index)
    assert 9 in plan.samples[:, 0]
    assert count_samples(3, 0.1) == 0  # alone it is, and the run is refused
