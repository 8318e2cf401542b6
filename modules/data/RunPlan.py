"""The optimizer steps of a run: the samples of each step, and the micro-batches of one rank."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from modules.config.steps import count_steps
from modules.data.epoch_plan import MicroBatch, count_samples, plan_epoch, shard, shard_same_passes

if TYPE_CHECKING:
    from modules.data.buckets import Buckets
    from modules.data.Dataset import Dataset

STEPS_LOOKED_AT = 1000  # to divide a step among ranks takes some 20 microseconds


@dataclass(frozen=True)
class PlannedStep:
    """One optimizer step. epoch, index: counted from 0, the index within the epoch. micro_batches: of this rank.

    num_passes: as in Step.
    """

    epoch: int
    index: int
    ends_epoch: bool
    micro_batches: list[MicroBatch]
    num_passes: int = 0


class RunPlan:
    """Plans every epoch independently of the number of ranks, and divides each step among the ranks.

    unusable: sample ids to skip, together with the other views of their images.
    apart: of each sample, what is equal for those which can share a forward pass, beside their bucket; None: all can.
        It counts where ranks must make the same passes: elsewhere a micro-batch may take several.
    validation_samples: int64[K], ids of the usable held-out samples, one per image.
    """

    def __init__(
        self,
        dataset: Dataset,
        buckets: Buckets,
        unusable: Collection[int],
        seed: int,
        global_batch: int,
        apart: Sequence[Hashable] | None = None,
    ):
        self.seed = seed
        self.global_batch = global_batch
        self._dataset = dataset
        self._buckets = buckets
        self._alike, self._alike_costs = (buckets.index, buckets.costs) if apart is None else _divided(buckets, apart)
        self._repeats = dataset.repeats
        self._num_views = None if dataset.views is None else dataset.num_views
        self._excluded = _as_mask(dataset.images_of(unusable), len(dataset))
        held_out = _as_mask((), len(dataset)) if dataset.held_out is None else dataset.held_out
        self.validation_samples = np.flatnonzero(held_out & ~self._excluded)
        self.num_samples = count_samples(len(dataset), self._repeats, self._excluded, dataset.concept_index)
        self.steps_per_epoch = count_steps(self.num_samples, global_batch)

    def steps(
        self, epoch: int, first: int, rank: int, world_size: int, accumulation: int, same_passes: bool = False
    ) -> Iterator[PlannedStep]:
        """Yields steps without end, starting at step `first` of `epoch`, with the micro-batches of `rank`.

        same_passes: whether ranks wait for each other in every pass, not only in the last one.
        """
        while True:
            plan = plan_epoch(
                self._buckets.index,
                self._repeats,
                self.seed,
                epoch,
                self.global_batch,
                self._excluded,
                self._dataset.concept_index,
                self._num_views,
            )
            for index in range(first, plan.num_steps):
                micro_batches, most = self._shard(plan.step(index), rank, world_size, accumulation, same_passes)
                yield PlannedStep(epoch, index, index == plan.num_steps - 1, micro_batches, most)
            epoch, first = epoch + 1, 0

    def _shard(
        self, samples: np.ndarray, rank: int, world_size: int, accumulation: int, same_passes: bool
    ) -> tuple[list[MicroBatch], int]:
        """(the micro-batches of a rank; with `same_passes`, the most that any rank has, else 0)."""
        buckets = self._buckets
        if not same_passes:
            return shard(samples, buckets.index, rank, world_size, accumulation, buckets.costs), 0
        parts, most = shard_same_passes(samples, self._alike, rank, world_size, accumulation, self._alike_costs)
        return [replace(part, bucket=int(buckets.index[part.samples[0, 0]])) for part in parts], most

    def expected_passes(
        self, epoch: int, first: int, num_steps: int, rank: int, world_size: int, accumulation: int
    ) -> dict[Hashable, float]:
        """How often each kind of micro-batch comes in the next `num_steps` steps of `rank`.

        The others: as for `steps`. Of a long run, what its next steps have stands for the rest.
        """
        looked_at = min(num_steps, STEPS_LOOKED_AT)
        steps = islice(self.steps(epoch, first, rank, world_size, accumulation), looked_at)
        batches = (micro_batch for step in steps for micro_batch in step.micro_batches if micro_batch.real)
        counts: Counter[Hashable] = Counter(micro_batch.kind for micro_batch in batches)
        return {kind: count * num_steps / looked_at for kind, count in counts.items()}

    def validation(self, rank: int, world_size: int, batch_size: int, same_passes: bool = False) -> list[MicroBatch]:
        """The batches of `rank` for one pass over the validation samples; may be empty if there are few samples.

        batch_size: the largest number of samples in a batch. same_passes: as for `steps`.
        """
        samples = np.stack((self.validation_samples, np.zeros_like(self.validation_samples)), axis=1)
        if not len(samples):
            return []
        num_batches = -(-len(samples) // (world_size * batch_size))
        batches, _ = self._shard(samples, rank, world_size, num_batches, same_passes)
        return [batch for batch in batches if batch.real]


def samples_digest(dataset: Dataset, unusable: Collection[int] = (), captions: Sequence[tuple[str, ...]] = ()) -> str:
    """A digest that changes when sample ids no longer refer to the same images, clips and what else they have.

    captions: if given, those of each sample, which then count, too.
    """
    options = (caption for of_sample in captions for caption in of_sample)
    texts = "\n".join([*(Path(path).name for path in dataset.paths), *options, *dataset.identities()])
    held_out = b"" if dataset.held_out is None else dataset.held_out.tobytes()
    named = texts.encode("utf-8", "surrogatepass")  # file names need not be valid Unicode
    return hashlib.sha256(named + _as_mask(unusable, len(dataset)).tobytes() + held_out).hexdigest()


def _divided(buckets: Buckets, apart: Sequence[Hashable]) -> tuple[np.ndarray, list[int]]:
    """(int[N], a number for each sample, equal where bucket and `apart` are; the cost of each number)."""
    numbers: dict[tuple[int, Hashable], int] = {}
    keys = zip(buckets.index.tolist(), apart, strict=True)
    index = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int32)
    return index, [buckets.costs[bucket] for bucket, _ in numbers]


def _as_mask(samples: Collection[int], count: int) -> np.ndarray:
    mask = np.zeros(count, bool)
    mask[list(samples)] = True
    return mask
