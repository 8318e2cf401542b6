"""Plain data from rank to rank through the store of the process group: no collective is open while a rank waits."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from modules.distributed.errors import RankLostError

if TYPE_CHECKING:
    from torch.distributed import Store

T = TypeVar("T")

FIRST_POLL_SECONDS, SLOWEST_POLL_SECONDS = 0.001, 0.2
ALIVE_SECONDS = 5.0  # between two signs of life
LEAVE_SECONDS = 15.0  # without a sign of life while rank 0 waits for the others to leave
SILENT_SECONDS = 60.0  # without one a rank counts as lost, on whatever machine it is


class StoreExchange:
    """Exchanges JSON between the ranks; every rank calls `gather` in the same order.

    on_wait: called at every look; what it raises ends the wait.
    A wait has no limit of its own: what a rank may take for its phase is for its watch to say. It ends with
    RankLostError where a rank that is waited for shows no life for SILENT_SECONDS, as when its machine is gone.
    """

    def __init__(self, store: Store, rank: int, world_size: int, on_wait: Callable[[], None] = lambda: None):
        self._store = store
        self._rank = rank
        self._ranks = range(world_size)
        self._on_wait = on_wait
        self._number = 0
        self._has_left = False
        self._store.set(f"alive/{rank}", "0")
        closed = threading.Event()
        # it holds the store, not this object, so that an exchange can be dropped without `close`
        thread = threading.Thread(target=_show_life, args=(store, rank, closed), name="alive", daemon=True)
        thread.start()
        # Also runs when the interpreter ends: a thread that is inside the store's C++ code then aborts the process.
        self._end_signs = weakref.finalize(self, _end_signs, closed, thread)

    def gather(self, value: T, why: str) -> list[T]:
        """The value of each rank, in their order."""
        self._begin()
        self._store.set(self._key(self._rank), json.dumps(value))
        self._wait(list(self._ranks), why)
        return [json.loads(self._store.get(self._key(rank))) for rank in self._ranks]

    def close(self) -> None:
        """Ends the signs of life. Rank 0, whose process may hold the store, waits until the others have left it.

        A second call does nothing. Where the store is gone already, nobody is left to wait for.
        """
        if self._has_left:
            return
        self._has_left = True
        self._end_signs()
        with contextlib.suppress(RuntimeError):  # torch's DistError
            self._store.set(f"left/{self._rank}", "1")
            if self._rank == 0:
                self._wait_until_left()

    def _wait_until_left(self) -> None:
        """Until every other rank has left or seems dead: one that still loads a model leaves late."""
        seen: dict[int, tuple[bytes, float]] = {}
        others = list(self._ranks[1:])
        while others := [rank for rank in others if not self._store.check([f"left/{rank}"])]:
            others = [rank for rank in others if self._silence(rank, seen) <= LEAVE_SECONDS]
            time.sleep(0.01)

    def _begin(self) -> None:
        """All ranks that have written a number have read the one before it: the second last can go."""
        self._number += 1
        if self._number > 2:
            self._store.delete_key(f"exchange/{self._number - 2}/{self._rank}")

    def _key(self, rank: int) -> str:
        return f"exchange/{self._number}/{rank}"

    def _wait(self, ranks: list[int], why: str) -> None:
        pause = FIRST_POLL_SECONDS
        seen: dict[int, tuple[bytes, float]] = {}
        while ranks := [rank for rank in ranks if not self._store.check([self._key(rank)])]:
            self._on_wait()
            if pause >= SLOWEST_POLL_SECONDS:
                self._check_alive(ranks, seen, why)
            time.sleep(pause)
            pause = min(2 * pause, SLOWEST_POLL_SECONDS)

    def _check_alive(self, ranks: list[int], seen: dict[int, tuple[bytes, float]], why: str) -> None:
        for rank in ranks:
            if self._silence(rank, seen) > SILENT_SECONDS:
                raise RankLostError(
                    f"Rank {rank} has not been heard of for {SILENT_SECONDS:g} s while the others waited for it "
                    f"({why}): look at its machine and its log."
                )

    def _silence(self, rank: int, seen: dict[int, tuple[bytes, float]]) -> float:
        """Seconds since the last sign of life of `rank`, as far as it was watched. seen: earlier looks, by rank."""
        now = time.monotonic()
        sign = self._store.get(f"alive/{rank}") if self._store.check([f"alive/{rank}"]) else b""
        if rank not in seen or seen[rank][0] != sign:
            seen[rank] = (sign, now)
        return now - seen[rank][1]


def _show_life(store: Store, rank: int, closed: threading.Event) -> None:
    number = 0
    while not closed.wait(ALIVE_SECONDS):
        number += 1
        try:
            store.set(f"alive/{rank}", str(number))
        except RuntimeError:  # torch's DistError: the store is gone, and so is rank 0; a wait will say so
            return


def _end_signs(closed: threading.Event, thread: threading.Thread) -> None:
    closed.set()
    if thread is not threading.current_thread():  # the garbage collector may call this in any thread
        thread.join(LEAVE_SECONDS)
