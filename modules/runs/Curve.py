"""The loss curve of a run, reduced to some hundred points while its steps are read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

MAX_POINTS = 400

Axis = Literal["step", "images", "seconds"]


class Point(NamedTuple):
    """The steps up to `step`, from the point before on.

    num_steps: of those with a finite loss. loss, low, high: the mean of their losses, the lowest and the highest; NaN
    if num_steps is 0. images, seconds: trained images, and seconds of training, up to `step`.
    """

    step: int
    num_steps: int
    loss: float
    low: float
    high: float
    images: int
    seconds: float


class Curve:
    """Points that each cover `width` steps, which doubles whenever there are more than MAX_POINTS of them.

    So the points of two runs cover the same steps, whatever was read when. A step that is not later than the last one
    replaces everything from its point on: a resumed run repeats the steps after its backup.
    """

    def __init__(self) -> None:
        self.width = 1
        self._last_step = 0
        self._images = 0
        self._seconds = 0.0
        # by number of the point: last step, count, sum, low, high, images, seconds
        self._points: dict[int, list[float]] = {}

    def add(self, step: int, loss: float | None, images: int, seconds: float) -> None:
        """Add a step. loss: None if it was skipped as not finite. images, seconds: of this step."""
        number = (step - 1) // self.width
        if step <= self._last_step:
            self._forget_from(number)
        self._last_step = step
        self._images += images
        self._seconds += seconds
        point = self._points.get(number)
        if point is None:
            if len(self._points) >= MAX_POINTS:
                self._halve()
                number = (step - 1) // self.width
            point = self._points.setdefault(number, [0, 0, 0.0, math.inf, -math.inf, 0, 0.0])
        point[0], point[5], point[6] = step, self._images, self._seconds
        if loss is not None:
            point[1] += 1
            point[2] += loss
            point[3], point[4] = min(point[3], loss), max(point[4], loss)

    @property
    def images(self) -> int:
        """Images trained up to the last step, those of repeated epochs included."""
        return self._images

    def points(self) -> list[Point]:
        return [_point(values) for values in self._points.values()]

    def to_plain(self) -> dict[str, Any]:
        """As JSON data, from which `from_plain` makes the same curve."""
        rows = [
            [number, *values[:3], *(None if math.isinf(one) else one for one in values[3:5]), *values[5:]]
            for number, values in self._points.items()
        ]
        return {"width": self.width, "last_step": self._last_step, "points": rows}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Curve:
        """Raises KeyError, TypeError or ValueError for anything that `to_plain` has not made."""
        curve = cls()
        curve.width, curve._last_step = int(plain["width"]), int(plain["last_step"])
        for number, step, count, total, low, high, images, seconds in plain["points"]:
            lowest, highest = (math.inf if low is None else low), (-math.inf if high is None else high)
            curve._points[int(number)] = [step, count, total, lowest, highest, images, seconds]
            curve._images, curve._seconds = int(images), float(seconds)
        return curve

    def _forget_from(self, number: int) -> None:
        self._points = {one: values for one, values in self._points.items() if one < number}
        last = next(reversed(self._points.values()), None)
        self._images, self._seconds = (0, 0.0) if last is None else (int(last[5]), float(last[6]))

    def _halve(self) -> None:
        self.width *= 2
        before, self._points = self._points, {}
        for number, values in before.items():
            point = self._points.setdefault(number // 2, [0, 0, 0.0, math.inf, -math.inf, 0, 0.0])
            point[0], point[5], point[6] = values[0], values[5], values[6]
            point[1] += values[1]
            point[2] += values[2]
            point[3], point[4] = min(point[3], values[3]), max(point[4], values[4])


def smoothed(points: Iterable[Point], num_steps: float) -> list[float]:
    """The running mean over about `num_steps` steps at each point, bias-corrected as that of the trainer (RunningMean).

    A point counts as often as the steps that it covers, so runs with points of different widths are smoothed alike.
    num_steps: 1 or less does not smooth. Points without a finite loss repeat the value before; NaN before the first.
    """
    keep = 1 - 1 / max(1.0, num_steps)
    total = weight = 0.0
    found = []
    for point in points:
        if point.num_steps:
            stays = keep**point.num_steps
            total = stays * total + (1 - stays) * point.loss
            weight = stays * weight + (1 - stays)
        found.append(total / weight if weight else math.nan)
    return found


def positions(points: Sequence[Point], axis: Axis) -> list[float]:
    """Where the points are on an axis: steps, trained images, or seconds of training."""
    return [float(getattr(point, axis)) for point in points]


def _point(values: Sequence[float]) -> Point:
    step, count, total, low, high, images, seconds = values
    if not count:
        low = high = math.nan
    return Point(int(step), int(count), total / count if count else math.nan, low, high, int(images), seconds)
