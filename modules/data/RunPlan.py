"""The steps of a run: which samples each of them trains on, and this rank's part of them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from modules.data.epoch_plan import MicroBatch, count_samples, count_steps, plan_epoch, shard

if TYPE_CHECKING:
    from modules.data.buckets import Buckets
    from modules.data.concepts import Dataset


@dataclass(frozen=True)
class PlannedStep:
    """epoch, index: from 0. ends_epoch: whether it is the epoch's last. micro_batches: this rank's."""

    epoch: int
    index: int
    ends_epoch: bool
    micro_batches: list[MicroBatch]


class RunPlan:
    """The plan of every epoch, which knows nothing of ranks, and the shares of one rank.

    unusable: sample ids that are left out, with the other views of their pictures.
    validation_samples: int64[K], the ids of the usable samples that are held out; each is a picture of its own.
    """

    def __init__(self, dataset: Dataset, buckets: Buckets, unusable: Collection[int], seed: int, global_batch: int):
        self.seed = seed
        self.global_batch = global_batch
        self._dataset = dataset
        self._buckets = buckets
        self._repeats = dataset.repeats
        self._num_views = None if dataset.views is None else dataset.num_views
        self._excluded = _as_mask(dataset.images_of(unusable), len(dataset))
        held_out = _as_mask((), len(dataset)) if dataset.held_out is None else dataset.held_out
        self.validation_samples = np.flatnonzero(held_out & ~self._excluded)
        self.num_samples = count_samples(len(dataset), self._repeats, self._excluded, dataset.concept_index)
        self.steps_per_epoch = count_steps(self.num_samples, global_batch)

    def steps(self, epoch: int, first: int, rank: int, world_size: int, accumulation: int) -> Iterator[PlannedStep]:
        """Endless: the steps from step `first` of `epoch` on, with what `rank` runs of them."""
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
                micro_batches = shard(plan.step(index), self._buckets.index, rank, world_size, accumulation)
                yield PlannedStep(epoch, index, index == plan.num_steps - 1, micro_batches)
            epoch, first = epoch + 1, 0

    def validation(self, rank: int, world_size: int, batch_size: int) -> list[MicroBatch]:
        """The batches of `rank` for one pass over the validation samples; empty where there are fewer than ranks.

        batch_size: samples that a batch may hold.
        """
        samples = np.stack((self.validation_samples, np.zeros_like(self.validation_samples)), axis=1)
        if not len(samples):
            return []
        num_batches = -(-len(samples) // (world_size * batch_size))
        batches = shard(samples, self._buckets.index, rank, world_size, accumulation=num_batches)
        return [batch for batch in batches if batch.real]


def samples_digest(dataset: Dataset, unusable: Collection[int] = (), captions: Sequence[tuple[str, ...]] = ()) -> str:
    """Changes when the samples' ids no longer mean the same pictures, or the same captions where these are given."""
    options = (caption for of_sample in captions for caption in of_sample)
    texts = "\n".join([*(Path(path).name for path in dataset.paths), *options])
    held_out = b"" if dataset.held_out is None else dataset.held_out.tobytes()
    named = texts.encode("utf-8", "surrogatepass")  # names of files need not be Unicode
    return hashlib.sha256(named + _as_mask(unusable, len(dataset)).tobytes() + held_out).hexdigest()


def _as_mask(samples: Collection[int], count: int) -> np.ndarray:
    mask = np.zeros(count, bool)
    mask[list(samples)] = True
    return mask
