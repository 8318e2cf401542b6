"""The losses and learning rates of a run, aggregated to as many points as a chart has room for."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from modules.session.RunningMean import SMOOTHING

if TYPE_CHECKING:
    import numpy as np

FACTOR = 16  # blocks of one level are combined into one of the next
LOW, HIGH, TOTAL, COUNT = range(4)
SMOOTHED_TOGETHER = 256  # steps whose running means one matrix product computes


class LossHistory:
    """Loss, smoothed loss and learning rate by step. Thread-safe.

    The smoothed loss is the trainer's RunningMean, for any `smoothing`: the share of the mean that a step leaves in
    place, from 0 (not smoothed) to less than 1.

    A step that is not later than the last one replaces everything from there on: a resumed run repeats the steps after
    its backup. A million steps take 20 MB and are drawn in 1 ms, because blocks of 16 steps, and blocks of 16 of those
    and so on, are aggregated only once.
    """

    def __init__(self) -> None:
        import numpy as np  # imported late, so that the window appears sooner

        self._np = np
        self._lock = threading.RLock()
        self._validation: list[tuple[int, float | None, float | None]] = []
        self._steps = np.empty(1024, np.int64)
        self._losses = np.empty(1024, np.float32)
        self._rates = np.empty(1024, np.float32)
        self._smooth = np.empty(1024, np.float32)
        self._smoothing = SMOOTHING
        self._num_smooth = 0  # steps for which _smooth is computed
        self._count = 0
        self._levels: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def first_step(self) -> int:
        """The first step; 0 if there is none."""
        with self._lock:
            return int(self._steps[0]) if self._count else 0

    @property
    def last_step(self) -> int:
        """The last step; 0 if there is none."""
        with self._lock:
            return int(self._steps[self._count - 1]) if self._count else 0

    @property
    def validation(self) -> list[tuple[int, float | None, float | None]]:
        """(step, loss, loss with the EMA weights), by step; None if not finite or not measured."""
        with self._lock:
            return list(self._validation)

    def add(self, step: int, loss: float | None, rate: float | None = None) -> None:
        """Add a step. loss: None if it was skipped as not finite. rate: the learning rate."""
        with self._lock:
            if self._count and step <= self._steps[self._count - 1]:
                self._forget_from(step)
            if self._count == len(self._steps):
                self._grow()
            place = self._count
            self._steps[place] = step
            self._losses[place] = math.nan if loss is None else loss
            self._rates[place] = math.nan if rate is None else rate
            self._count += 1
            if self._count % FACTOR**3 == 0:  # gradually, instead of all at once when a long run is first drawn
                self._level(3)

    def add_validation(self, step: int, loss: float | None, ema_loss: float | None = None) -> None:
        with self._lock:
            self._validation = [point for point in self._validation if point[0] < step]
            self._validation.append((step, loss, ema_loss))

    def points(
        self, num_buckets: int, first: int | None = None, last: int | None = None
    ) -> list[tuple[int, float, float, float]]:
        """At most `num_buckets` points (step, low, high, mean) for the steps from `first` to `last` inclusive.

        Each point covers all steps up to the next point, so no outlier is lost: a single high loss in a million is the
        `high` of its point. step: the first step that a point covers. Skipped steps are ignored; points without any
        other steps are omitted.
        """
        np = self._np
        with self._lock:
            start, end = self._range(first, last)
            if end - start <= max(1, num_buckets):
                low = high = mean = self._losses[start:end]
                steps = self._steps[start:end]
            else:
                steps, low, high, mean = self._summed_up(start, end, max(1, num_buckets))
            seen = np.isfinite(mean)
            return list(
                zip(steps[seen].tolist(), low[seen].tolist(), high[seen].tolist(), mean[seen].tolist(), strict=True)
            )

    def smooth_points(
        self, num_buckets: int, first: int | None = None, last: int | None = None, smoothing: float = SMOOTHING
    ) -> list[tuple[int, float]]:
        """At most `num_buckets` points (step, smoothed loss), sampled evenly, as a smooth curve has no outliers."""
        with self._lock:
            return self._sampled(self._smoothed(smoothing), num_buckets, first, last)

    def rate_points(
        self, num_buckets: int, first: int | None = None, last: int | None = None
    ) -> list[tuple[int, float]]:
        """At most `num_buckets` points (step, learning rate), sampled evenly."""
        with self._lock:
            return self._sampled(self._rates, num_buckets, first, last)

    def at(
        self, step: int, smoothing: float = SMOOTHING
    ) -> tuple[int, float | None, float | None, float | None] | None:
        """(step, loss, smoothed loss, learning rate) of the step nearest to `step`; None if there is none."""
        with self._lock:
            if not self._count:
                return None
            place = int(self._np.searchsorted(self._steps[: self._count], step))
            near = [p for p in (place - 1, place) if 0 <= p < self._count]
            place = min(near, key=lambda p: abs(int(self._steps[p]) - step))
            values = (float(of[place]) for of in (self._losses, self._smoothed(smoothing), self._rates))
            loss, smooth, rate = (value if math.isfinite(value) else None for value in values)
            return int(self._steps[place]), loss, smooth, rate

    def _sampled(
        self, values: np.ndarray, num_buckets: int, first: int | None, last: int | None
    ) -> list[tuple[int, float]]:
        np = self._np
        start, end = self._range(first, last)
        if end <= start:
            return []
        places = np.unique(np.linspace(start, end - 1, max(1, min(num_buckets, end - start))).round().astype(int))
        chosen = values[places]
        seen = np.isfinite(chosen)
        return list(zip(self._steps[places][seen].tolist(), chosen[seen].tolist(), strict=True))

    def _smoothed(self, smoothing: float) -> np.ndarray:
        """The smoothed losses; only those of new steps are computed, unless `smoothing` has changed."""
        if smoothing != self._smoothing:
            self._smoothing, self._num_smooth = smoothing, 0
        if self._num_smooth < self._count:
            self._smooth[self._num_smooth : self._count] = self._running_means(self._num_smooth, self._count)
            self._num_smooth = self._count
        return self._smooth

    def _running_means(self, start: int, end: int) -> np.ndarray:
        """The running means at the steps from index `start` to `end`, continued from the one before; skipped steps
        repeat it."""
        np, keep = self._np, self._smoothing
        num_before = np.count_nonzero(np.isfinite(self._losses[:start]))
        before = float(self._smooth[start - 1]) if num_before else math.nan
        seen = np.isfinite(self._losses[start:end])
        losses = self._losses[start:end][seen].astype(float)
        weights = 1 - keep ** np.arange(num_before + 1.0, num_before + len(losses) + 1)
        sums = self._discounted_sums(losses, before * (1 - keep**num_before) if num_before else 0.0)
        return np.concatenate([[before], sums / weights])[np.cumsum(seen)]

    def _discounted_sums(self, values: np.ndarray, carried: float) -> np.ndarray:
        """s[k] = keep * s[k - 1] + (1 - keep) * values[k], with s[-1] = carried."""
        np, keep = self._np, self._smoothing
        size = max(1, min(SMOOTHED_TOGETHER, len(values)))
        lags = np.subtract.outer(np.arange(size), np.arange(size))
        matrix = np.where(lags >= 0, (1 - keep) * keep ** np.maximum(lags, 0), 0.0)
        blocks = np.pad(values, (0, -len(values) % size)).reshape(-1, size) @ matrix.T
        powers = keep ** np.arange(1.0, size + 1)
        for block in blocks:
            block += powers * carried
            carried = block[-1]
        return blocks.ravel()[: len(values)]

    def _range(self, first: int | None, last: int | None) -> tuple[int, int]:
        """The indexes of the steps from `first` to `last`."""
        steps = self._steps[: self._count]
        start = 0 if first is None else int(self._np.searchsorted(steps, first, "left"))
        end = self._count if last is None else int(self._np.searchsorted(steps, last, "right"))
        return start, max(start, end)

    def _summed_up(self, start: int, end: int, num_buckets: int) -> Sequence[np.ndarray]:
        """Steps, lows, highs and means of buckets, computed from the coarsest level that is fine enough."""
        np = self._np
        depth = 0
        while FACTOR ** (depth + 1) * num_buckets <= end - start:
            depth += 1
        block = FACTOR**depth
        begin, stop = start // block, end // block  # complete blocks; the remainder makes one more
        sums = self._entries(depth, begin, stop)
        if stop * block < end:
            sums = np.concatenate([sums, self._combined(self._as_sums(stop * block, end)[:, None])], axis=1)
        edges = np.unique(np.linspace(0, sums.shape[1], num_buckets + 1).astype(int)[:-1])
        counts = np.add.reduceat(sums[COUNT], edges)
        means = np.full(len(edges), np.nan)
        np.divide(np.add.reduceat(sums[TOTAL], edges), counts, out=means, where=counts > 0)
        steps = self._steps[np.maximum((begin + edges) * block, start)]
        return steps, np.fmin.reduceat(sums[LOW], edges), np.fmax.reduceat(sums[HIGH], edges), means

    def _entries(self, depth: int, begin: int, stop: int) -> np.ndarray:
        """float64[4, stop - begin]: low, high, sum and count of blocks of FACTOR ** depth losses."""
        return self._level(depth)[:, begin:stop] if depth else self._as_sums(begin, stop)

    def _level(self, depth: int) -> np.ndarray:
        """All complete blocks; new ones are aggregated now."""
        np = self._np
        level = self._levels.get(depth, np.empty((4, 0)))
        have, wanted = level.shape[1], self._count // FACTOR**depth
        if have < wanted:
            finer = self._entries(depth - 1, have * FACTOR, wanted * FACTOR)
            level = np.concatenate([level, self._combined(finer.reshape(4, -1, FACTOR))], axis=1)
            self._levels[depth] = level
        return level

    def _as_sums(self, begin: int, stop: int) -> np.ndarray:
        """Each loss as a block; one that is not finite has neutral low and high and count 0."""
        np = self._np
        losses = self._losses[begin:stop].astype(float)
        seen = np.isfinite(losses)
        losses[~seen] = np.nan
        return np.stack([losses, losses, np.where(seen, losses, 0.0), seen.astype(float)])

    def _combined(self, sums: np.ndarray) -> np.ndarray:
        """Aggregate blocks: [4, n, k] -> [4, n]."""
        np = self._np
        low, high = np.fmin.reduce(sums[LOW], axis=1), np.fmax.reduce(sums[HIGH], axis=1)
        return np.stack([low, high, sums[TOTAL].sum(axis=1), sums[COUNT].sum(axis=1)])

    def _forget_from(self, step: int) -> None:
        self._count = int(self._np.searchsorted(self._steps[: self._count], step))
        self._num_smooth = min(self._num_smooth, self._count)
        for depth, level in self._levels.items():
            self._levels[depth] = level[:, : self._count // FACTOR**depth]
        self._validation = [point for point in self._validation if point[0] < step]

    def _grow(self) -> None:
        for name in ("_steps", "_losses", "_rates", "_smooth"):
            values = getattr(self, name)
            larger = self._np.empty(2 * len(values), values.dtype)
            larger[: len(values)] = values
            setattr(self, name, larger)
