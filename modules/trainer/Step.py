"""One optimizer step's work on this rank."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Step:
    """micro_batches: passed to `step_fn` one after the other; at least one.
    epoch: from 0. index: of this step in its epoch, from 0. ends_epoch: whether it is the last of its epoch.
    padding: whether this rank has no samples in this step, and runs the micro-batches with weight 0 only to take part
        in the collectives.
    kinds: of the micro-batches, equal for those of the same size and shape; left empty, the loop can't use graphs.
    num_passes: most micro-batches that a rank has in this step, where all ranks must make the same passes; 0 if only
        the ranks themselves can tell.
    """

    micro_batches: Sequence[Any]
    epoch: int = 0
    index: int = 0
    ends_epoch: bool = False
    padding: bool = False
    kinds: Sequence[Hashable] = ()
    num_passes: int = 0
