"""Whether a run compiles its blocks for each size of its batches or once for all, and with which batches first."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from modules.data.epoch_plan import MicroBatch

if TYPE_CHECKING:
    from modules.config.ModelConfig import ModelConfig
    from modules.data.buckets import Buckets
    from modules.data.RunPlan import RunPlan
    from modules.families.Family import Family

MOST_EACH = 4  # sizes; more would take longer to compile than all at once
STEPS_LOOKED_AT = 1000  # of an epoch


class CompiledSizes(NamedTuple):
    """all_sizes: whether one graph is for all sizes, in place of one for each.

    num_sizes: how many sizes there are; None if texts differ in length, too.
    first: the batches to compile with before the first step if one graph is for all sizes, so that its kernels are
        chosen for them, and not for the size with which a run begins or resumes.
    """

    all_sizes: bool
    num_sizes: int | None
    first: tuple[MicroBatch, ...]

    @property
    def num_graphs(self) -> int | None:
        """How often each kind of block is compiled; None if unknown."""
        return len(self.first) if self.all_sizes else self.num_sizes


def compiled_sizes(
    model: ModelConfig, family: Family, plan: RunPlan, buckets: Buckets, num_ranks: int, accumulation: int
) -> CompiledSizes:
    """The same for every rank, and for a run that is resumed on as many.

    num_ranks, accumulation: as in `RunPlan.steps`.
    """
    # in an epoch, whatever the number of steps of the run is, which can be raised for a resumed one
    steps = islice(plan.steps(0, 0, 0, num_ranks, accumulation), min(plan.steps_per_epoch, STEPS_LOOKED_AT))
    kinds: dict[tuple[int, int], MicroBatch] = {}
    for step in steps:
        for batch in step.micro_batches:
            kinds.setdefault((batch.bucket, len(batch.samples)), batch)
    # texts of other lengths and samples that go to one of two experts are sizes that no plan knows
    varies = family.text.collate != "stack" or family.experts is not None
    count = None if varies else len(kinds)
    all_sizes = model.compile_sizes == "all" or (model.compile_sizes == "auto" and (varies or len(kinds) > MOST_EACH))
    return CompiledSizes(all_sizes, count, _largest(kinds.values(), buckets) if all_sizes else ())


def _largest(batches: Iterable[MicroBatch], buckets: Buckets) -> tuple[MicroBatch, ...]:
    """The largest batch of several samples, and of one; the same for clips and images.

    torch makes a graph of its own for what has the size 1.
    """
    largest: dict[tuple[bool, bool], MicroBatch] = {}
    for batch in sorted(batches, key=lambda one: (-len(one.samples) * buckets.costs[one.bucket], one.bucket)):
        largest.setdefault((len(batch.samples) == 1, buckets.frames[batch.bucket] == 1), batch)
    return tuple(largest.values())
