"""The smoothed loss."""

from __future__ import annotations

from dataclasses import dataclass

SMOOTHING = 0.98  # the share of the mean that each step leaves in place, which averages about 50 steps


@dataclass
class RunningMean:
    """A bias-corrected exponential moving average, as in Adam (Kingma and Ba 2015, section 3).

    Without the correction the mean would stay near the first value for a hundred steps.
    value: None before the first number. weight: the total weight of the numbers in it, from 0 towards 1.
    """

    value: float | None = None
    weight: float = 0.0

    def add(self, number: float) -> None:
        before = SMOOTHING * self.weight
        self.weight = before + 1 - SMOOTHING
        self.value = (before * (self.value or 0.0) + (1 - SMOOTHING) * number) / self.weight
