"""Exceptions of distributed training."""

from __future__ import annotations

from collections.abc import Sequence

from modules.config.errors import UserError


class RanksError(UserError):
    """The ranks can't work together; `str()` is one sentence with the remedy."""


class RankLostError(RanksError):
    """Another rank has disappeared for a reason that this rank can't know."""


def started_twice(rank: int) -> RanksError:
    return RanksError(
        f"Rank {rank} was started twice: give every machine its own node_rank, and end the processes of any earlier "
        "run."
    )


def not_joined(missing: Sequence[int], world_size: int, seconds: float) -> RanksError:
    return RanksError(
        f"Of {world_size} ranks, {', '.join(map(str, missing))} did not join within {seconds:g} s: check their logs, "
        "and num_nodes, node_rank and master_addr."
    )
