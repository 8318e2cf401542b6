"""How long an all-reduce takes among a group of ranks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from modules.config.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

WARM_UP_ROUNDS = 2
MIN_ROUNDS, MAX_ROUNDS = 3, 1000


def seconds_of_all_reduce(values: Tensor, group: ProcessGroup, ranks: Sequence[int], seconds: float) -> float:
    """The median duration of an all-reduce of `values`, over as many rounds as fit into `seconds`.

    group: of `ranks`, all of which call it. Raises UserError if the sums are wrong.
    """
    import torch
    import torch.distributed as dist

    values.fill_(1)
    dist.all_reduce(values, group=group)
    if not torch.all(values == len(ranks)):
        # happens if an IOMMU redirects traffic between GPUs
        raise UserError(
            f"The all-reduce of ranks {list(ranks)} gave wrong sums: the link between their devices corrupts data; "
            "switch the IOMMU off in the firmware, or choose other GPUs."
        )
    values.zero_()  # zeros don't overflow over many rounds
    once = _time_rounds(values, group, WARM_UP_ROUNDS)[-1]
    rounds = torch.tensor(rounds_that_fit(seconds, once), device=values.device)
    dist.all_reduce(rounds, dist.ReduceOp.MIN, group=group)  # the same on all ranks
    return median(_time_rounds(values, group, int(rounds)))


def rounds_that_fit(seconds: float, once: float) -> float:
    """The number of rounds of `once` seconds; always a float, because the dtype must be the same on all ranks."""
    return float(min(max(seconds / once, MIN_ROUNDS), MAX_ROUNDS))


def _time_rounds(values: Tensor, group: ProcessGroup, count: int) -> list[float]:
    """The duration of each of `count` all-reduces in seconds; on a GPU measured by events, without syncs in between."""
    import torch
    import torch.distributed as dist

    if values.device.type == "cuda":
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            dist.all_reduce(values, group=group)
            event.record()
        torch.cuda.synchronize(values.device)
        return [before.elapsed_time(after) / 1000 for before, after in itertools.pairwise(events)]
    times = [time.perf_counter()]
    for _ in range(count):
        dist.all_reduce(values, group=group)
        times.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(times)]
