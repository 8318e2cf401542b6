"""Reduced curves: what they keep of thousands of steps, and that runs are smoothed alike."""

import json
import math

import pytest

from modules.runs.Curve import MAX_POINTS, Curve, Point, positions, smoothed
from modules.session.RunningMean import SMOOTHING, RunningMean


def curve_of(losses) -> Curve:
    curve = Curve()
    for step, loss in enumerate(losses, start=1):
        curve.add(step, loss, 4, 0.5)
    return curve


def test_thousands_of_steps_become_some_hundred_points_that_keep_the_outliers():
    losses = [1.0] * 20_000
    losses[12_345], losses[777] = 9.0, None
    points = curve_of(losses).points()
    assert MAX_POINTS / 2 <= len(points) <= MAX_POINTS
    assert sum(point.num_steps for point in points) == 19_999
    assert max(point.high for point in points) == 9.0
    assert (points[-1].step, points[-1].images, points[-1].seconds) == (20_000, 80_000, 10_000.0)
    assert positions(points[-1:], "images") == [80_000.0]


@pytest.mark.parametrize("split", [1, 399, 400, 401, 1900])
def test_a_curve_that_was_kept_in_between_goes_on_as_if_it_had_not_been(split):
    losses = [1 / step for step in range(1, 2001)]
    kept = Curve.from_plain(json.loads(json.dumps(curve_of(losses[:split]).to_plain())))
    for step in range(split + 1, 2001):
        kept.add(step, losses[step - 1], 4, 0.5)
    assert kept.to_plain() == curve_of(losses).to_plain()


def test_a_curve_is_smoothed_as_the_trainer_smooths_whatever_the_width_of_its_points():
    losses = [math.sin(step / 40) + 2 for step in range(300)]
    mean = RunningMean()
    expected = []
    for loss in losses:
        mean.add(loss)
        expected.append(mean.value)
    steps = 1 / (1 - SMOOTHING)
    assert smoothed(curve_of(losses).points(), steps) == pytest.approx(expected)
    wide = [Point(10 * k, 10, sum(losses[10 * k - 10 : 10 * k]) / 10, 0, 0, 0, 0) for k in range(1, 31)]
    assert smoothed(wide, steps) == pytest.approx(expected[9::10], abs=0.05)


def test_skipped_steps_leave_a_smoothed_curve_where_it_was():
    values = smoothed(curve_of([None, 1.0, None]).points(), 10)
    assert math.isnan(values[0])
    assert values[1:] == [1.0, 1.0]
    assert smoothed(curve_of([3.0, 1.0]).points(), 1) == [3.0, 1.0]
