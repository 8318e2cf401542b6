"""The semaphore is first come, first served, and no rank waits for ever."""

from __future__ import annotations

import threading
import time

import pytest
import torch.distributed as dist

from modules.distributed.SignedStore import SignedStore
from modules.distributed.store_semaphore import store_semaphore
from tests.support.waiting import PATIENCE_SECONDS, wait_until


@pytest.fixture
def store():
    return SignedStore(dist.HashStore(), b"key", "run")


def test_at_most_limit_holders_are_inside_and_all_get_in(store):
    def take(number):
        with store_semaphore(store, "loading", 2, PATIENCE_SECONDS):
            inside.add(number)
            most.append(len(inside))
            entered.append(number)
            go_on.acquire()
            inside.discard(number)

    inside, most, entered, go_on = set(), [], [], threading.Semaphore(0)
    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=take, args=(number,), daemon=True))
        threads[-1].start()
        wait_until(lambda number=number: store.has(f"loading/came/{number}"))
    wait_until(lambda: sorted(entered) == [0, 1])
    go_on.release(5)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert sorted(entered) == [0, 1, 2, 3, 4]
    assert max(most) == 2


def test_a_waiter_that_gives_up_does_not_block_others(store):
    def leave():
        raise KeyError("a stop")

    first = store_semaphore(store, "loading", 1, PATIENCE_SECONDS)
    with first, pytest.raises(KeyError), store_semaphore(store, "loading", 1, PATIENCE_SECONDS, on_wait=leave):
        pass
    with store_semaphore(store, "loading", 1, PATIENCE_SECONDS):
        pass


def test_after_the_time_limit_the_body_runs_anyway(store):
    store.agree("loading/came/0", "a rank that is gone")
    start = time.monotonic()
    with store_semaphore(store, "loading", 1, limit_seconds=0.2):
        assert time.monotonic() - start >= 0.2


def test_semaphores_with_different_names_are_independent(store):
    with (
        store_semaphore(store, "loading/0", 1, PATIENCE_SECONDS),
        store_semaphore(store, "loading/1", 1, PATIENCE_SECONDS),
    ):
        pass
