"""What a benchmark finds, what it is held against, and the table of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Protocol

from scripts.benchmarks.medians import Median, median_with_interval

MET, MISSED, OPEN = "met", "missed", "open"
HEAD = ("what", "ratio or value", "interval", "target", "")


@dataclass(frozen=True)
class Target:
    """ratio: what a ratio may be at most, or at least. most_high: the upper end of its interval at most."""

    ratio: float
    most_high: float | None = None
    at_least: bool = False

    def __str__(self) -> str:
        high = f", high {self.most_high:.2f}" if self.most_high is not None else ""
        return f"{'>=' if self.at_least else '<='} {self.ratio:.2f}{high}"

    def judge(self, found: Median) -> str:
        """MET, MISSED, or OPEN where the noise does not tell: the median is on one side of the target, but the
        interval holds the other side, too, or goes higher than it may.
        """
        if self.at_least:
            return MET if found.value >= self.ratio else MISSED if found.high < self.ratio else OPEN
        if found.low > self.ratio:
            return MISSED
        is_met = found.value <= self.ratio and (self.most_high is None or found.high <= self.most_high)
        return MET if is_met else OPEN


class Found(Protocol):
    """One result: as a line of the terminal, as values of the JSON file, and as a row of the table."""

    def as_values(self) -> dict[str, Any]: ...

    def row(self) -> tuple[str, ...]:
        """In the order of HEAD."""
        ...


@dataclass(frozen=True)
class Comparison:
    """One comparison of two sides, measured in pairs; `unit` is that of both. target: None where there is none."""

    what: str
    unit: str
    target: Target | None
    pairs: list[tuple[float, float]]
    sides: tuple[str, str] = ("Chorus", "by hand")

    @property
    def ratio(self) -> Median:
        return median_with_interval([ours / theirs for ours, theirs in self.pairs])

    @property
    def medians(self) -> tuple[float, float]:
        ours, theirs = zip(*self.pairs, strict=True)
        return median(ours), median(theirs)

    def __str__(self) -> str:
        ours, theirs = self.medians
        target = f", target {self.target}: {self.target.judge(self.ratio)}" if self.target else ""
        pairs = f"{len(self.pairs)} pairs" if len(self.pairs) > 1 else "1 pair"
        return (
            f"{self.what}: ratio {self.ratio} over {pairs}{target}; "
            f"{self.sides[0]} {ours:.4g} {self.unit}, {self.sides[1]} {theirs:.4g} {self.unit}"
        )

    def as_values(self) -> dict[str, Any]:
        verdict = {"verdict": self.target.judge(self.ratio)} if self.target else {}
        return {**asdict(self), "ratio": asdict(self.ratio), **verdict}

    def row(self) -> tuple[str, ...]:
        found = self.ratio
        interval = f"{found.low:.3f} to {found.high:.3f}"
        target = (str(self.target), self.target.judge(found)) if self.target else ("", "")
        return (self.what, f"{found.value:.3f}", interval, *target)


@dataclass(frozen=True)
class Figure:
    """target: what `value` may be at most, or at least; None where there is no such. details: what else was seen.
    values: for the file alone.
    """

    what: str
    value: float
    unit: str
    target: float | None = None
    details: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """MET or MISSED; "" without a target."""
        if self.target is None:
            return ""
        return MET if self.value == self.target or (self.value > self.target) == self.at_least else MISSED

    def __str__(self) -> str:
        if self.target is None:
            target = ""
        else:
            missed = "under the target" if self.at_least else "over the target"
            target = f", {'target' if self.verdict == MET else missed} {self.target:g}"
        return f"{self.what}: {self.value:.3g} {self.unit}{target}{'; ' if self.details else ''}{self.details}"

    def as_values(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}

    def row(self) -> tuple[str, ...]:
        target = "" if self.target is None else f"{'>=' if self.at_least else '<='} {self.target:g}"
        return (self.what, f"{self.value:.3g} {self.unit}".rstrip(), "", target, self.verdict)


def table(found: Sequence[tuple[str, ...]]) -> str:
    """The rows of what was found, below HEAD."""
    rows = [HEAD, *found]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
