"""How ranks divide the work on a dataset, and report how far it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

# (index, count): every count-th item from index on; None for a rank that does none of the work.
Shard = tuple[int, int] | None
WHOLE: Shard = (0, 1)

Progress = Callable[[str, int, int], None]  # (activity, items done, items in total)


def shard_of(values: Sequence[T], shard: Shard) -> Sequence[T]:
    """The items of `values` in a shard. Shards of the same values differ in size by at most one."""
    return values[shard[0] :: shard[1]] if shard else values[:0]
