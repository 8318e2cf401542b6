"""Medians with the interval in which the true one lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median


@dataclass(frozen=True)
class Median:
    """value: of the measurements. low, high: the interval's ends."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def median_with_interval(values: Sequence[float], confidence: float = 0.95) -> Median:
    """The median and, from the ranks of the values alone, an interval that holds the true one with `confidence`.

    No shape of the noise is assumed. Fewer than six values are too few for 95 %: the interval is then their range.
    Source: David & Nagaraja, Order Statistics, 3rd edition, section 7.1.
    """
    values = sorted(values)
    outside = _ranks_to_leave_out(len(values), (1 - confidence) / 2)
    return Median(median(values), values[outside], values[-1 - outside])


def _ranks_to_leave_out(count: int, tail: float) -> int:
    """How many values may go at each end: the largest k with P(at most k heads of `count` coins) <= tail, else 0."""
    at_most, left_out = 0.0, 0
    for heads in range(count // 2):
        at_most += comb(count, heads) / 2**count
        if at_most > tail:
            break
        left_out = heads
    return left_out
