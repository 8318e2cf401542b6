import math
import random

import pytest

from modules.session.RunningMean import RunningMean
from modules.ui.models.LossHistory import LossHistory


def history_of(losses, first=1):
    history = LossHistory()
    for step, loss in enumerate(losses, first):
        history.add(step, loss)
    return history


def random_losses(count):
    draw = random.Random(0)
    return [draw.random() for _ in range(count)]


def test_a_few_steps_are_given_as_they_are():
    history = history_of([0.5, 0.25, 0.125])
    assert history.points(10) == [(1, 0.5, 0.5, 0.5), (2, 0.25, 0.25, 0.25), (3, 0.125, 0.125, 0.125)]
    assert history.smooth_points(10, smoothing=0.0) == [(1, 0.5), (2, 0.25), (3, 0.125)]
    assert (history.first_step, history.last_step, len(history)) == (1, 3, 3)


def test_no_steps_give_no_points():
    history = LossHistory()
    assert history.points(10) == history.smooth_points(10) == []
    assert history.last_step == 0
    assert history.at(5) is None


@pytest.mark.parametrize("count", [101, 1600, 5000, 40_000])
@pytest.mark.parametrize("num_buckets", [1, 7, 100])
def test_the_buckets_are_those_of_the_losses_themselves(count, num_buckets):
    losses = random_losses(count)
    points = history_of(losses).points(num_buckets)
    assert 0 < len(points) <= num_buckets
    starts = [step for step, *_ in points]
    assert starts[0] == 1
    assert starts == sorted(set(starts))
    for (step, low, high, mean), end in zip(points, [*starts[1:], count + 1], strict=True):
        own = losses[step - 1 : end - 1]
        assert (low, high) == pytest.approx((min(own), max(own)))
        assert mean == pytest.approx(sum(own) / len(own))


def test_one_high_loss_in_many_is_seen():
    losses = [0.1] * 100_000
    losses[54_321] = 9.0
    assert max(high for _, _, high, _ in history_of(losses).points(50)) == 9.0


def test_points_grow_with_the_run():
    """Aggregates from the first drawing are reused for the next ones, together with new steps."""
    losses, history = random_losses(20_000), LossHistory()
    for step, loss in enumerate(losses, 1):
        history.add(step, loss)
        if step % 3001 == 0:
            history.points(40)
    assert history.points(40) == history_of(losses).points(40)


def test_a_part_of_the_run_can_be_asked_for():
    history = history_of([float(step) for step in range(1, 10_001)])
    points = history.points(10, 2001, 3000)
    assert points[0][0] == 2001
    assert max(high for _, _, high, _ in points) == 3000
    assert [step for step, *_ in history.points(10, 5, 7)] == [5, 6, 7]


def test_a_skipped_step_counts_for_nothing():
    history = history_of([1.0, None, 3.0] * 100)
    assert all(not math.isnan(value) for point in history.points(10) for value in point)
    assert history.points(1)[0][1:] == (1.0, 3.0, 2.0)
    assert history.at(2) == (2, None, 1.0, None)  # the mean stays where it was


def test_only_skipped_steps_give_no_points():
    assert history_of([None] * 50).points(10) == []
    assert history_of([None] * 5).points(10) == []


def test_a_resumed_run_takes_the_place_of_what_it_repeats():
    first, again = random_losses(30_000), [5.0] * 4000
    history = history_of(first)
    history.points(20)  # aggregates
    history.add_validation(100, 0.2)
    history.add_validation(29_000, 0.1)
    for step, loss in enumerate(again, 28_001):
        history.add(step, loss)
    assert history.last_step == 32_000
    assert history.points(20) == history_of(first[:28_000] + again).points(20)
    assert history.validation == [(100, 0.2, None)]


def test_the_step_under_the_pointer_is_the_nearest():
    history = LossHistory()
    history.add(10, 0.5, 0.25)
    history.add(20, 1.0, 0.125)
    assert history.at(3, smoothing=0.0) == (10, 0.5, 0.5, 0.25)
    assert history.at(16, smoothing=0.0) == (20, 1.0, 1.0, 0.125)
    assert history.at(99, smoothing=0.0) == (20, 1.0, 1.0, 0.125)


@pytest.mark.parametrize("smoothing", [0.0, 0.5, 0.98, 0.999])
def test_the_smoothed_loss_is_the_mean_of_the_steps_so_far_by_their_age(smoothing):
    """However many steps are added between two drawings, with skipped steps, and after a resume."""
    losses = [None if number % 7 == 3 else loss for number, loss in enumerate(random_losses(1500))]
    history = LossHistory()
    for step, loss in enumerate([*losses, 9.0, 9.0], 1):
        history.add(step, loss)
        if step in (1, 5, 700, 1502):
            history.smooth_points(10, smoothing=smoothing)
    history.add(1501, 0.25)  # resumed from the backup of step 1500
    seen = [loss for loss in [*losses, 0.25] if loss is not None]
    for count, step in ((1, 1), (3, 3), (len(seen), 1501)):
        weights = [smoothing**age for age in range(count)]
        mean = sum(w * loss for w, loss in zip(weights, reversed(seen[:count]), strict=True)) / sum(weights)
        assert history.at(step, smoothing)[2] == pytest.approx(mean, rel=1e-5)


def test_the_trainer_smooths_in_the_same_way():
    losses, mean, history = random_losses(400), RunningMean(), LossHistory()
    for step, loss in enumerate(losses, 1):
        mean.add(loss)
        history.add(step, loss)
        if step in (1, 10, 400):
            assert history.at(step)[2] == pytest.approx(mean.value, rel=1e-5)
    assert history.at(40)[2] == pytest.approx(sum(losses[:40]) / 40, abs=0.05)  # not drawn to the first loss


def test_learning_rates_are_given_by_step():
    history = LossHistory()
    for step in range(1, 1001):
        history.add(step, 0.5, 1e-3 / step)
    assert history.rate_points(2) == [(1, pytest.approx(1e-3)), (1000, pytest.approx(1e-6))]


def test_a_step_number_of_a_damaged_file_takes_no_memory():
    history = history_of([0.5])
    history.add(10**15, 0.25)
    assert len(history.points(100)) == 2


def test_a_long_run_is_drawn_out_of_what_is_summed_up(monkeypatch):
    """A later drawing reads thousands of numbers, not the whole run again."""
    history = history_of([0.5] * 100_000)
    history.points(500)
    looked_at = []
    as_sums = history._as_sums
    monkeypatch.setattr(history, "_as_sums", lambda begin, stop: looked_at.append(stop - begin) or as_sums(begin, stop))
    history.add(100_001, 0.5)
    history.points(500)
    assert sum(looked_at) < 100
