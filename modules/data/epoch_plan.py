"""Assigns samples to optimizer steps, and the samples of a step to ranks.

The plan of an epoch is a pure function that does not depend on the number of ranks; `shard` then selects what one rank
runs of a step, so that all need about the same time. No sample is dropped or duplicated: over all steps and ranks, each
sample of the epoch occurs once.

A sample of an epoch is a row (sample id, repeat); repeat counts 0, 1, ... for an image that is used several times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from modules.config.counted import counted
from modules.config.steps import count_steps
from modules.data.draws import hash64_array, uniform, uniform_array


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """The samples of one epoch, ordered by optimizer step.

    samples: int64[M, 2], rows of (sample id, repeat).
    step_starts: int64[S + 1]; step i is the rows step_starts[i] to step_starts[i + 1].
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
        """int64[K, 2], the samples of step i over all ranks. Raises IndexError if the epoch has no such step."""
        if not 0 <= i < self.num_steps:
            raise IndexError(f"step {i} of an epoch of {self.num_steps} steps")
        return self.samples[self.step_starts[i] : self.step_starts[i + 1]]


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Samples of one shape that a rank runs in one forward and backward pass.

    samples: int64[k, 2], rows of (sample id, repeat); k >= 1.
    bucket: position in Buckets.shapes.
    real: False for a placeholder, which only keeps this rank in step with the others: its loss has weight 0 and its
        samples are not counted.
    """

    samples: np.ndarray
    bucket: int
    real: bool

    @property
    def kind(self) -> tuple[int, int]:
        """(number of samples, bucket): equal for micro-batches that are of the same size and shape."""
        return len(self.samples), self.bucket


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
    repeats: float[N], how often each sample is used per epoch (or one number for all).
    global_batch: samples per optimizer step over all ranks and micro-batches.
    excluded: bool[N], samples to skip, such as unreadable images.
    concept_index: int[N], groups within which the fractions of `repeats` are drawn; None groups equal repeats.
    num_views: int[N], the number of views that start at each sample; one is drawn for each use. None: one view each.
    Every step has global_batch samples except the last one of the epoch, which has the rest. As many steps as possible
    have samples of a single bucket.
    """
    num_repeats = _count_repeats(len(bucket_index), repeats, seed, epoch, excluded, concept_index)
    ids = np.repeat(np.arange(len(bucket_index)), num_repeats)
    repeat = np.arange(len(ids)) - np.repeat(np.cumsum(num_repeats) - num_repeats, num_repeats)
    if num_views is not None:
        choices = num_views[ids]
        ids = ids + np.floor(uniform_array(seed, epoch, ids, repeat, "view") * choices).astype(np.int64)
    # The order of buckets changes each epoch, so that the last, smaller step is not always made of the same bucket.
    bucket_key = hash64_array(seed, epoch, np.asarray(bucket_index), "bucket order")[ids]
    # lexsort is stable: samples with equal hashes keep the order of (id, repeat)
    by_bucket = np.lexsort((hash64_array(seed, epoch, ids, repeat, "sample order"), bucket_key))
    order = by_bucket[_whole_steps_first(bucket_key[by_bucket], global_batch)]
    samples = np.stack((ids[order], repeat[order]), axis=1)

    num_steps = count_steps(len(samples), global_batch)
    num_full = len(samples) // global_batch
    full = samples[: num_full * global_batch].reshape(num_full, global_batch, 2)
    step_order = np.argsort(hash64_array(seed, epoch, np.arange(num_full), "step order"), kind="stable")
    samples = np.concatenate((full[step_order].reshape(-1, 2), samples[num_full * global_batch :]))
    step_starts = np.minimum(np.arange(num_steps + 1) * global_batch, len(samples))
    return EpochPlan(samples, step_starts)


def shard(
    step_samples: np.ndarray,
    bucket_index: np.ndarray,
    rank: int,
    world_size: int,
    accumulation: int,
    costs: Sequence[int] | None = None,
) -> list[MicroBatch]:
    """The micro-batches of `rank` in one optimizer step, grouped by shape, the costliest first.

    step_samples: int64[K, 2] from EpochPlan.step, the same on all ranks; K >= 1.
    bucket_index: int[N], the bucket of each sample id.
    accumulation: the minimum number of micro-batches, if the rank has that many samples. Mixed shapes need more,
        because no micro-batch is larger than ceil(K / world_size / accumulation), which is what fits in memory.
    costs: of a sample of each bucket, positive and relative to each other; None: all the same.
    Ranks have about the same cost, and the same number of samples, up to one, if all cost the same. A rank without
    samples gets one placeholder micro-batch.
    """
    _check_rank(rank, world_size)
    return _of_rank(rank, *_division(step_samples, bucket_index, world_size, accumulation, costs, same_passes=False))


def shard_same_passes(
    step_samples: np.ndarray,
    bucket_index: np.ndarray,
    rank: int,
    world_size: int,
    accumulation: int,
    costs: Sequence[int] | None = None,
) -> tuple[list[MicroBatch], int]:
    """(as of `shard`, where ranks wait for each other in every pass; the most micro-batches that any rank has).

    Ranks have the same number of samples, up to one.
    """
    _check_rank(rank, world_size)
    division = _division(step_samples, bucket_index, world_size, accumulation, costs, same_passes=True)
    _, buckets, ranks, limit = division
    most = max(len(list(_parts(buckets[ranks == each], limit))) for each in range(world_size))
    return _of_rank(rank, *division), most


def _check_rank(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}")


def _of_rank(rank: int, ordered: np.ndarray, buckets: np.ndarray, ranks: np.ndarray, limit: int) -> list[MicroBatch]:
    """Those of one rank, of a `_division`."""
    own = np.flatnonzero(ranks == rank)
    if not len(own):
        return [MicroBatch(ordered[-1:], int(buckets[-1]), real=False)]
    return [MicroBatch(ordered[own[i:j]], int(buckets[own[i]]), real=True) for i, j in _parts(buckets[own], limit)]


def _division(
    step_samples: np.ndarray,
    bucket_index: np.ndarray,
    world_size: int,
    accumulation: int,
    costs: Sequence[int] | None,
    same_passes: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """(the samples of a step in order, the bucket and the rank of each, the most samples of a micro-batch)."""
    buckets = np.asarray(bucket_index)[step_samples[:, 0]]
    cost = np.ones(len(buckets), np.int64) if costs is None else np.asarray(costs, np.int64)[buckets]
    order = np.lexsort((buckets, -cost))  # stable
    step_samples, buckets, cost = step_samples[order], buckets[order], cost[order]
    per_rank = -(-len(buckets) // world_size)
    ranks = _divide(buckets.tolist(), cost.tolist(), world_size, per_rank if same_passes else len(buckets))
    return step_samples, buckets, np.array(ranks), -(-per_rank // accumulation)


def _parts(buckets: np.ndarray, limit: int) -> Iterator[tuple[int, int]]:
    """Ranges of at most `limit` samples of the same bucket; `buckets` is grouped."""
    return (part for start, stop in _runs(buckets) for part in _cut(start, stop, limit))


def count_samples(
    num_images: int,
    repeats: np.ndarray | float,
    excluded: np.ndarray | None = None,
    concept_index: np.ndarray | None = None,
) -> int:
    """The number of samples in an epoch, the same for every epoch. Arguments as for `plan_epoch`."""
    return int(_count_repeats(num_images, repeats, 0, 0, excluded, concept_index).sum())


def few_samples_warning(samples: int, batch: int) -> str | None:
    """A warning if an epoch has fewer samples than a step."""
    return f"{counted(samples, 'sample')} < {batch} per step: each step is a whole epoch." if samples < batch else None


def _count_repeats(
    num_images: int,
    repeats: np.ndarray | float,
    seed: int,
    epoch: int,
    excluded: np.ndarray | None,
    concept_index: np.ndarray | None,
) -> np.ndarray:
    """int64[N], how often each image is used in this epoch.

    Each image is used floor(repeats) times, and the fraction of the images given by the fractional part once more:
    10 images x 2.5 are 25 samples, and each epoch draws anew which five images are used a third time. The sum is the
    same for every seed and epoch.
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
    num_extra = _systematic_rounding(expected, uniform(seed, epoch, "repeat of a group"), least=int(would_be_lost))
    order = np.lexsort((hash64_array(seed, epoch, candidates, "repeat"), group))
    size = np.bincount(group)
    place_in_group = np.arange(len(order)) - np.repeat(np.cumsum(size) - size, size)
    drawn = candidates[order[place_in_group < num_extra[group[order]]]]
    whole[drawn] += 1
    return whole


def _systematic_rounding(expected: np.ndarray, draw: float, least: int) -> np.ndarray:
    """int64[G], `expected` rounded up or down at random, with the right mean over many draws.

    Deterministic rounding would never use a group that expects 0.4 samples per epoch.

    draw: uniform in [0, 1). The sum of the result is the same for every draw, and at least `least` if anything is
    expected; rounding that sum to an integer shifts all means slightly.
    Source: W. Madow 1949, "On the theory of systematic sampling, II", Annals of Mathematical Statistics 20.
    """
    # 6 decimals: the fraction of 2.1 is off by 1e-16, which must not change how a half is rounded
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
    """Reorders samples that are sorted by bucket: first the full steps of each bucket, then all remainders.

    Both parts stay grouped by bucket, so that the mixed steps made of remainders have few shapes.
    """
    _, size = np.unique(bucket_key, return_counts=True)  # in the order of bucket_key, which is sorted
    place_in_bucket = np.arange(len(bucket_key)) - np.repeat(np.cumsum(size) - size, size)
    in_whole_step = place_in_bucket < np.repeat(size - size % global_batch, size)
    return np.concatenate((np.flatnonzero(in_whole_step), np.flatnonzero(~in_whole_step)))


def _divide(buckets: list[int], costs: list[int], world_size: int, most: int) -> list[int]:
    """The rank of each sample: the one with the least to do so far. The samples are sorted, the costliest first.

    A sample follows the one before it of the same bucket unless its rank would then have more than the mean, because
    several of one shape run together. most: how many samples a rank may have.
    Source: R. Graham 1969, "Bounds on multiprocessing timing anomalies", SIAM Journal on Applied Mathematics 17.
    """
    costs = _without_small_differences(costs)
    total = sum(costs)
    loads, counts, ranks = [0] * world_size, [0] * world_size, [0]
    for number, (bucket, cost) in enumerate(zip(buckets, costs, strict=True)):
        rank = ranks[-1]
        follows = number > 0 and bucket == buckets[number - 1]
        if not follows or counts[rank] == most or (loads[rank] + cost) * world_size > total:
            rank = min((loads[one], one) for one in range(world_size) if counts[one] < most)[1]
        loads[rank] += cost
        counts[rank] += 1
        ranks.append(rank)
    return ranks[1:]


def _without_small_differences(costs: list[int]) -> list[int]:
    """Descending costs, of which those up to an eighth below another are like it.

    The shapes of images differ so little that ranks with fewer shapes, and larger micro-batches, are faster.
    """
    level, levels = costs[0], []
    for cost in costs:
        if 8 * cost < 7 * level:
            level = cost
        levels.append(level)
    return levels


def _runs(buckets: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges whose samples have the same bucket; `buckets` is grouped."""
    if not len(buckets):
        return iter(())
    changes = 1 + np.flatnonzero(np.diff(buckets))
    return pairwise([0, *changes.tolist(), len(buckets)])


def _cut(start: int, stop: int, limit: int) -> Iterator[tuple[int, int]]:
    """Splits start to stop into ranges of at most `limit`."""
    for i in range(start, stop, limit):
        yield i, min(i + limit, stop)
