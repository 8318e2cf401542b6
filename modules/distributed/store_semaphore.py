"""A semaphore over ranks, made of counters in the store, so that no collective is open while a rank waits."""

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
    """Inside, this is one of at most `limit` holders of the semaphore `name`, first come, first served.

    Ranks may enter it a different number of times, or not at all. After waiting for `limit_seconds`, a rank enters
    anyway, because the semaphore only saves memory. on_wait: called with every poll; an exception from it ends the
    wait.
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
