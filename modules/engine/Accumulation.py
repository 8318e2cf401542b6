"""How many batches an optimizer step has, which may change from epoch to epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True)
class Accumulation:
    """Batches of a rank per optimizer step.

    by_epoch: from which epoch on (from 0) a step has how many; before the first of them, one.
    """

    by_epoch: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, value: int | Mapping[int, int]) -> Accumulation:
        """value: as `TrainingEngine.train` gets it."""
        return cls(value if isinstance(value, Mapping) else {0: value})

    def in_epoch(self, epoch: int) -> int:
        begun = [first for first in self.by_epoch if first <= epoch]
        return self.by_epoch[max(begun)] if begun else 1

    def steps(self, batches: int, epoch: int) -> int:
        """The optimizer steps of an epoch in which a rank has so many batches; the last step may have fewer."""
        return -(-batches // self.in_epoch(epoch))

    def total_steps(self, batches: int, num_epochs: int) -> int:
        """The optimizer steps of so many epochs."""
        changes = sorted({0, num_epochs, *(epoch for epoch in self.by_epoch if epoch < num_epochs)})
        return sum((end - first) * self.steps(batches, first) for first, end in pairwise(changes))
