"""A semaphore over ranks, made of tickets in the store, so that no collective is open while a rank waits."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modules.distributed.SignedStore import SignedStore

POLL_SECONDS = 0.05


@contextlib.contextmanager
def store_semaphore(
    store: SignedStore, name: str, limit: int, limit_seconds: float, on_wait: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Inside, this is one of at most `limit` holders of the semaphore `name`, first come, first served.

    Ranks may enter it a different number of times, or not at all. After waiting for `limit_seconds`, a rank enters
    anyway, because the semaphore only saves memory. on_wait: called with every poll; an exception from it ends the
    wait.
    """
    deadline = time.monotonic() + limit_seconds
    holder = secrets.token_hex(8)
    ticket = next(number for number in itertools.count() if store.agree(f"{name}/came/{number}", holder) == holder)
    before = list(range(ticket))
    try:
        while True:
            before = [number for number in before if not store.has(f"{name}/gone/{number}")]
            if len(before) < limit or time.monotonic() > deadline:
                break
            on_wait()
            time.sleep(POLL_SECONDS)
        yield
    finally:
        store.set(f"{name}/gone/{ticket}", True)
