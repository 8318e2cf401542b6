"""Exchanges plain data between ranks through the store, so that no collective is open while a rank waits."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from modules.distributed.errors import RankLostError
from modules.distributed.SignedStore import ABSENT

if TYPE_CHECKING:
    from modules.distributed.SignedStore import SignedStore

T = TypeVar("T")

FIRST_POLL_SECONDS, SLOWEST_POLL_SECONDS = 0.001, 0.2
POLL_SHARE = 1 / 8  # of the time waited so far, between polls: a rank goes on at most so much later than it could
KEEPALIVE_SECONDS = 5.0  # between keepalives
LEAVE_SECONDS = 15.0  # without a keepalive before rank 0 stops waiting for a rank to leave
SILENT_SECONDS = 60.0  # without a keepalive before a rank counts as lost


class StoreExchange:
    """Exchanges JSON between the ranks; every rank must call `gather` in the same order.

    on_wait: called with every poll; an exception from it ends the wait.
    A wait has no timeout of its own: the heartbeat limits how long a rank may take for its phase. It ends with
    RankLostError if a rank sends no keepalive for SILENT_SECONDS, for example because its machine is down.
    With each keepalive, a rank writes its current values again, in case someone else has overwritten them.
    """

    def __init__(self, store: SignedStore, rank: int, world_size: int, on_wait: Callable[[], None] = lambda: None):
        self._store = store
        self._rank = rank
        self._ranks = range(world_size)
        self._on_wait = on_wait
        self._number = 0
        self._has_left = False
        self._current = _Current(store)
        self._store.set(f"alive/{rank}", 0)
        closed = threading.Event()
        # the thread does not reference this object, so that an exchange can be garbage-collected without `close`
        arguments = (store, rank, self._current, closed)
        thread = threading.Thread(target=_send_keepalives, args=arguments, name="alive", daemon=True)
        thread.start()
        # Also runs at interpreter shutdown, where a thread inside the store's C++ code would abort the process.
        self._stop_keepalives = weakref.finalize(self, _stop_keepalives, closed, thread)

    def gather(self, value: T, why: str) -> list[T]:
        """The values of all ranks, in rank order."""
        self._begin()
        self.publish(self._key(self._rank), value)
        values = self._wait(why)
        return [values[rank] for rank in self._ranks]

    def publish(self, key: str, value: Any) -> None:
        """Writes plain data for the other ranks, in place of what this rank has written at `key` before."""
        self._current.set(key, value)

    def close(self) -> None:
        """Stops the keepalives. Rank 0, which may host the store, waits until the other ranks have left.

        A second call does nothing. If the store is already gone, there is nobody to wait for.
        """
        if self._has_left:
            return
        self._has_left = True
        self._stop_keepalives()
        with contextlib.suppress(RuntimeError):  # torch's DistError
            self._store.set(f"left/{self._rank}", True)
            if self._rank == 0:
                self._wait_until_left()

    def _wait_until_left(self) -> None:
        """Waits until every other rank has left or seems dead. A rank that is still loading a model leaves late."""
        seen: dict[int, tuple[int, float]] = {}
        others = list(self._ranks[1:])
        while others := [rank for rank in others if not self._store.has(f"left/{rank}")]:
            others = [rank for rank in others if self._silence(rank, seen) <= LEAVE_SECONDS]
            time.sleep(0.01)

    def _begin(self) -> None:
        """Starts the next exchange and deletes this rank's key of the second last, which all ranks have read."""
        self._number += 1
        if self._number > 2:
            self._current.delete(f"exchange/{self._number - 2}/{self._rank}")

    def _key(self, rank: int) -> str:
        return f"exchange/{self._number}/{rank}"

    def _wait(self, why: str) -> dict[int, Any]:
        """The value of each rank in this exchange, once all of them are there."""
        started = time.monotonic()
        missing = list(self._ranks)
        values: dict[int, Any] = {}
        seen: dict[int, tuple[int, float]] = {}
        while True:
            waited = time.monotonic() - started
            pause = min(max(FIRST_POLL_SECONDS, POLL_SHARE * waited), SLOWEST_POLL_SECONDS)
            is_slow = pause == SLOWEST_POLL_SECONDS
            if is_slow or self._store.are_set([self._key(rank) for rank in missing]):  # of many ranks, one question
                found = {rank: self._store.read(self._key(rank), ABSENT) for rank in missing}
                values |= {rank: value for rank, value in found.items() if value is not ABSENT}
                missing = [rank for rank in missing if rank not in values]
            if not missing:
                return values
            self._on_wait()
            if is_slow:
                self._check_alive(missing, seen, why)
            time.sleep(pause)

    def _check_alive(self, ranks: list[int], seen: dict[int, tuple[int, float]], why: str) -> None:
        for rank in ranks:
            if self._silence(rank, seen) > SILENT_SECONDS:
                raise RankLostError(
                    f"Rank {rank} has not responded for {SILENT_SECONDS:g} s while the others waited for it "
                    f"({why}): check its machine and its log."
                )

    def _silence(self, rank: int, seen: dict[int, tuple[int, float]]) -> float:
        """Seconds since a new keepalive of `rank` was last observed. seen: rank -> (keepalive, time of observation)."""
        now = time.monotonic()
        number = self._store.read(f"alive/{rank}", -1)
        if rank not in seen or number > seen[rank][0]:  # a smaller one is a copy of an earlier keepalive
            seen[rank] = (number, now)
        return now - seen[rank][1]


class _Current:
    """The values of this rank that others may still have to read. Thread-safe."""

    def __init__(self, store: SignedStore):
        self._store = store
        self._values: dict[str, Any] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: Any) -> None:
        with self._lock:
            self._values[key] = value
            self._store.set(key, value)

    def delete(self, key: str) -> None:
        with self._lock:
            del self._values[key]
            self._store.delete(key)

    def restore(self) -> None:
        """Writes again what someone else has overwritten."""
        with self._lock:
            for key, value in self._values.items():
                if not self._store.has(key):
                    self._store.set(key, value)


def _send_keepalives(store: SignedStore, rank: int, current: _Current, closed: threading.Event) -> None:
    number = 0
    while not closed.wait(KEEPALIVE_SECONDS):
        number += 1
        try:
            store.set(f"alive/{rank}", number)
            current.restore()
        except RuntimeError:  # torch's DistError: the store is gone with rank 0; the next wait will report that
            return


def _stop_keepalives(closed: threading.Event, thread: threading.Thread) -> None:
    closed.set()
    if thread is not threading.current_thread():  # the garbage collector may call this in any thread
        thread.join(LEAVE_SECONDS)
