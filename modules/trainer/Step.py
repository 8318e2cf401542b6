"""One optimizer step's work on this rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Step:
    """micro_batches: what `step_fn` is called with, one after the other; at least one.
    epoch: from 0. index: of this step in its epoch, from 0. ends_epoch: whether it is the epoch's last.
    padding: whether the micro-batches only keep this rank in step with the others, because it has no sample: their loss
        has weight 0, and they count as no samples.
    """

    micro_batches: Sequence[Any]
    epoch: int = 0
    index: int = 0
    ends_epoch: bool = False
    padding: bool = False
