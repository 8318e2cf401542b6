"""Ranks that do something a few at a time, by counters in the store: no collective is open while one waits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store

POLL_SECONDS = 0.05


@contextlib.contextmanager
def store_semaphore(
    store: Store, name: str, limit: int, limit_seconds: float, on_wait: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """The body runs on at most `limit` of those who take turns under `name`, first come, first served.

    Not every rank need come, nor equally often. Nobody waits longer than `limit_seconds`: then the body runs all the
    same, for turns only save memory. on_wait: called at every look; what it raises ends the wait.
    """
    came, gone = f"{name}/came", f"{name}/gone"
    deadline = time.monotonic() + limit_seconds
    number = store.add(came, 1)
    try:
        while number - store.add(gone, 0) > limit and time.monotonic() < deadline:
            on_wait()
            time.sleep(POLL_SECONDS)
        yield
    finally:
        store.add(gone, 1)
