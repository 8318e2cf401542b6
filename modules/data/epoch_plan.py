"""Which samples each optimizer step trains on, and which of them a rank takes.

The plan of an epoch is a pure function that knows nothing of ranks; `shard` then cuts one of its steps into what a
rank runs. Nothing is dropped or doubled on the way: over all steps and ranks each sample of the epoch comes once.

A sample of an epoch is a row (sample id, repeat); repeat counts 0, 1, ... for a picture that is shown several times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from modules.data.draws import hash64, uniform


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """The samples of one epoch in the order of its optimizer steps.

    samples: int64[M, 2], rows of (sample id, repeat).
    step_starts: int64[S + 1], step i holds rows step_starts[i] to step_starts[i + 1].
    """

    samples: np.ndarray
    step_starts: np.ndarray

    @property
    def num_samples(self) -> int:
        return len(self.samples)

    @property
    def num_steps(self) -> int:
        return len(self.step_starts) - 1

    def step(self, i: int) -> np.ndarray:
        """int64[K, 2], the samples of step i over all ranks. Raises IndexError beyond the epoch."""
        if not 0 <= i < self.num_steps:
            raise IndexError(f"step {i} of an epoch of {self.num_steps} steps")
        return self.samples[self.step_starts[i] : self.step_starts[i + 1]]


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Samples of one shape that a rank runs in one forward and backward.

    samples: int64[k, 2], rows of (sample id, repeat); k >= 1.
    bucket: position in Buckets.shapes.
    real: False if it only keeps this rank in step with the others: its loss has weight 0 and it counts as no sample.
    """

    samples: np.ndarray
    bucket: int
    real: bool


def plan_epoch(
    bucket_index: np.ndarray,
    repeats: np.ndarray | float,
    seed: int,
    epoch: int,
    global_batch: int,
    excluded: np.ndarray | None = None,
    concept_index: np.ndarray | None = None,
    num_views: np.ndarray | None = None,
) -> EpochPlan:
    """Plan the optimizer steps of one epoch.

    bucket_index: int[N], the bucket of each sample id.
    repeats: float[N], how often an epoch shows each sample (or one number for all).
    global_batch: samples of one optimizer step over all ranks and micro-batches.
    excluded: bool[N], samples left out (pictures found to be unreadable).
    concept_index: int[N], the groups within which fractions of `repeats` are drawn; None: samples with equal repeats.
    num_views: int[N], each sample and those behind it among which every showing draws one; None: no choice.
    Every step has global_batch samples but the last of the epoch, which has the rest. As many steps as possible hold
    a single bucket.
    """
    num_repeats = _count_repeats(len(bucket_index), repeats, seed, epoch, excluded, concept_index)
    ids = np.repeat(np.arange(len(bucket_index)), num_repeats)
    repeat = np.arange(len(ids)) - np.repeat(np.cumsum(num_repeats) - num_repeats, num_repeats)
    if num_views is not None:
        choices = num_views[ids]
        ids = ids + np.floor(uniform(seed, epoch, ids, repeat, "view") * choices).astype(np.int64)
    # A new order of buckets each epoch: else the same bucket would always end up in the last, smaller step.
    bucket_key = hash64(seed, epoch, np.asarray(bucket_index), "bucket order")[ids]
    # lexsort is stable: samples with equal hashes stay in order of (id, repeat)
    by_bucket = np.lexsort((hash64(seed, epoch, ids, repeat, "sample order"), bucket_key))
    order = by_bucket[_whole_steps_first(bucket_key[by_bucket], global_batch)]
    samples = np.stack((ids[order], repeat[order]), axis=1)

    num_steps = count_steps(len(samples), global_batch)
    num_full = len(samples) // global_batch
    full = samples[: num_full * global_batch].reshape(num_full, global_batch, 2)
    step_order = np.argsort(hash64(seed, epoch, np.arange(num_full), "step order"), kind="stable")
    samples = np.concatenate((full[step_order].reshape(-1, 2), samples[num_full * global_batch :]))
    step_starts = np.minimum(np.arange(num_steps + 1) * global_batch, len(samples))
    return EpochPlan(samples, step_starts)


def shard(
    step_samples: np.ndarray, bucket_index: np.ndarray, rank: int, world_size: int, accumulation: int
) -> list[MicroBatch]:
    """What `rank` runs of one optimizer step: its share of the samples, shape by shape.

    step_samples: int64[K, 2] from EpochPlan.step, the same on all ranks; K >= 1.
    bucket_index: int[N], the bucket of each sample id.
    accumulation: the share is run in at least this many micro-batches if it has as many samples. More are needed when
        shapes are mixed: none is larger than ceil(share / accumulation), which is what fits in memory.
    Shares differ by at most one sample. Ordered by shape before they are cut, so that a rank meets few shapes.
    A rank left without a sample gets one that is not `real`.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}")
    buckets = np.asarray(bucket_index)[step_samples[:, 0]]
    order = np.argsort(buckets, kind="stable")
    step_samples, buckets = step_samples[order], buckets[order]
    share, larger_shares = divmod(len(step_samples), world_size)
    start = rank * share + min(rank, larger_shares)
    stop = start + share + (rank < larger_shares)
    if start == stop:
        return [MicroBatch(step_samples[:1], int(buckets[0]), real=False)]
    limit = -(-(stop - start) // accumulation)
    return [
        MicroBatch(step_samples[i:j], int(buckets[i]), real=True)
        for run_start, run_stop in _runs(buckets, start, stop)
        for i, j in _cut(run_start, run_stop, limit)
    ]


def count_samples(
    num_images: int,
    repeats: np.ndarray | float,
    excluded: np.ndarray | None = None,
    concept_index: np.ndarray | None = None,
) -> int:
    """Samples of an epoch, the same for every epoch. Arguments as for `plan_epoch`."""
    return int(_count_repeats(num_images, repeats, 0, 0, excluded, concept_index).sum())


def few_samples_warning(samples: int, batch: int) -> str | None:
    """The warning of an epoch of `samples` that does not fill one step's `batch`."""
    return f"{samples} samples < {batch} per step: every step is a whole epoch." if samples < batch else None


def count_steps(num_samples: int, global_batch: int) -> int:
    """Optimizer steps that `num_samples` samples take: pooled remainders make it exact whatever the buckets are."""
    return -(-num_samples // global_batch)


def _count_repeats(
    num_images: int,
    repeats: np.ndarray | float,
    seed: int,
    epoch: int,
    excluded: np.ndarray | None,
    concept_index: np.ndarray | None,
) -> np.ndarray:
    """int64[N], how often this epoch shows each picture.

    The whole part of `repeats` always; of the fraction, the share it stands for: 10 pictures x 2.5 are 25 samples, and
    which five pictures come a third time is drawn anew each epoch. The sum is the same for every seed and epoch.
    """
    repeats = np.array(np.broadcast_to(repeats, num_images), np.float64)
    if excluded is not None:
        repeats[excluded] = 0
    whole = np.floor(repeats).astype(np.int64)
    fraction = repeats - whole
    candidates = np.flatnonzero(fraction)
    if len(candidates) == 0:
        return whole
    groups = repeats if concept_index is None else np.asarray(concept_index)
    _, group = np.unique(groups[candidates], return_inverse=True)
    group = group.reshape(-1)
    expected = np.bincount(group, fraction[candidates])
    would_be_lost = (np.bincount(group, whole[candidates]) + expected < 1).any() and whole.any()
    num_extra = _rounded_by_chance(expected, uniform(seed, epoch, "repeat of a group"), least=int(would_be_lost))
    order = np.lexsort((hash64(seed, epoch, candidates, "repeat"), group))
    size = np.bincount(group)
    place_in_group = np.arange(len(order)) - np.repeat(np.cumsum(size) - size, size)
    drawn = candidates[order[place_in_group < num_extra[group[order]]]]
    whole[drawn] += 1
    return whole


def _rounded_by_chance(expected: np.ndarray, draw: float, least: int) -> np.ndarray:
    """int64[G], `expected` rounded up or down, so that over many draws each comes to its value.

    Rounded the same way each time, a group that expects 0.4 samples in an epoch would never be seen.

    draw: in [0, 1). The sum is the same for every draw, and at least `least` where something is expected; by what it is
    rounded, all come a little more or less often.
    Source: W. Madow 1949, "On the theory of systematic sampling, II", Annals of Mathematical Statistics 20.
    """
    # 6 decimals: 0.1 drawn from 2.1 has an error of 1e-16, which must not tip a half
    expected = expected.round(6)
    whole = np.floor(expected)
    part = expected - whole
    uneven = np.flatnonzero(part)
    if len(uneven) == 0:
        return whole.astype(np.int64)
    part, total = part[uneven], part.sum()
    rounded = max(float(least), np.floor(total.round(6) + 0.5))
    if rounded < total:
        part = part * rounded / total
    else:
        part = 1 - (1 - part) * (len(part) - rounded) / (len(part) - total)
    ends = np.cumsum(part).round(6)
    ends[-1] = rounded
    whole[uneven] += np.diff(np.floor(ends + draw), prepend=0)
    return whole.astype(np.int64)


def _whole_steps_first(bucket_key: np.ndarray, global_batch: int) -> np.ndarray:
    """Positions of samples sorted by bucket, rearranged: first each bucket's whole steps, then the buckets' remainders.

    Both stay grouped by bucket, so a mixed step cut from the remainders has few shapes.
    """
    _, size = np.unique(bucket_key, return_counts=True)  # bucket_key is sorted: the sizes come in its order
    place_in_bucket = np.arange(len(bucket_key)) - np.repeat(np.cumsum(size) - size, size)
    in_whole_step = place_in_bucket < np.repeat(size - size % global_batch, size)
    return np.concatenate((np.flatnonzero(in_whole_step), np.flatnonzero(~in_whole_step)))


def _runs(buckets: np.ndarray, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Ranges within start to stop whose samples share a bucket; `buckets` is sorted."""
    changes = start + 1 + np.flatnonzero(np.diff(buckets[start:stop]))
    borders = [start, *changes.tolist(), stop]
    return pairwise(borders)


def _cut(start: int, stop: int, limit: int) -> Iterator[tuple[int, int]]:
    """start to stop in ranges of at most `limit`."""
    for i in range(start, stop, limit):
        yield i, min(i + limit, stop)
