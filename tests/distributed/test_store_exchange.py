"""StoreExchange with a real store; each rank is a thread with its own client."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from modules.distributed import StoreExchange as module
from modules.distributed.errors import RankLostError
from modules.distributed.SignedStore import SignedStore
from modules.distributed.StoreExchange import StoreExchange
from tests.support.waiting import PATIENCE_SECONDS

WORLD_SIZE, KEY = 3, b"the key of this run"


@pytest.fixture
def server():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def exchanges(server, monkeypatch):
    """One exchange per rank; all are closed afterwards, as ranks do."""
    monkeypatch.setattr(module, "LEAVE_SECONDS", 2.0)
    made = [StoreExchange(client(server), rank, WORLD_SIZE) for rank in range(WORLD_SIZE)]
    yield made
    for exchange in reversed(made):  # rank 0 waits for the others
        exchange.close()


def client(server: dist.TCPStore, key: bytes = KEY) -> SignedStore:
    store = dist.PrefixStore("run", dist.TCPStore("127.0.0.1", server.port, is_master=False))
    return SignedStore(store, key, "run")


def on_all_ranks(body: Callable[[StoreExchange, int], Any], exchanges: list[StoreExchange]) -> list[Any]:
    """Runs `body` for all ranks concurrently; returns its results, or the errors."""
    results: list[Any] = [None] * len(exchanges)

    def run(rank: int) -> None:
        try:
            results[rank] = body(exchanges[rank], rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(len(exchanges))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), "a rank hangs"
    return results


def test_every_rank_gets_all_values_in_rank_order(exchanges):
    def body(exchange, rank):
        time.sleep(0.05 * (WORLD_SIZE - rank))  # in reverse order
        return exchange.gather({"rank": rank, "text": "é", "nothing": None}, "a test")

    expected = [{"rank": rank, "text": "é", "nothing": None} for rank in range(WORLD_SIZE)]
    assert on_all_ranks(body, exchanges) == [expected] * WORLD_SIZE


def test_large_values_arrive_complete(exchanges):
    def body(exchange, rank):
        return exchange.gather(str(rank) * 2**20, "a test")

    expected = [str(rank) * 2**20 for rank in range(WORLD_SIZE)]
    assert on_all_ranks(body, exchanges) == [expected] * WORLD_SIZE


def test_exchanges_do_not_mix_and_leave_no_keys_behind(exchanges, server):
    def body(exchange, rank):
        pauses = random.Random(rank)
        for number in range(100):
            if pauses.random() < 0.2:
                time.sleep(0.003)
            assert exchange.gather([number, rank], "a test") == [[number, other] for other in range(WORLD_SIZE)]
        return server.num_keys()

    before = server.num_keys()
    assert all(isinstance(keys, int) for keys in on_all_ranks(body, exchanges))
    assert server.num_keys() <= before + 2 * WORLD_SIZE  # of the last two rounds


class SlowStore:
    """A store in which the value of another rank appears after `seconds` of a clock that only `sleep` moves."""

    def __init__(self, seconds):
        self.now, self._seconds, self._values, self.questions = 0.0, seconds, {}, 0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def set(self, key, value):
        self._values.setdefault(key, value)

    def read(self, key, default=None):
        self.questions += 1
        return "there" if self.now >= self._seconds else self._values.get(key, default)

    def are_set(self, keys):
        self.questions += 1
        return self.now >= self._seconds or all(key in self._values for key in keys)

    def has(self, key):
        return key in self._values


@pytest.mark.parametrize(("seconds", "questions"), [(0.005, 80), (0.3, 120), (30.0, 20_000)])
def test_a_rank_waits_an_eighth_longer_than_it_has_to_at_most_and_asks_seldom(seconds, questions, monkeypatch):
    """Of 63 others."""
    store = SlowStore(seconds)
    exchange = StoreExchange(store, 0, 64)
    monkeypatch.setattr(module, "time", store)
    exchange.gather("own", "a test")
    assert store.now - seconds < max(module.FIRST_POLL_SECONDS, min(seconds / 8, module.SLOWEST_POLL_SECONDS)) + 1e-9
    assert store.questions < questions
    monkeypatch.undo()
    exchange.close()


def test_a_rank_without_keepalives_is_named(exchanges, monkeypatch):
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.5)
    exchanges[2].close()  # sends no more keepalives

    def body(exchange, rank):
        return None if rank == 2 else exchange.gather(rank, "comparing")

    first, second, _ = on_all_ranks(body, exchanges)
    for error in (first, second):
        assert isinstance(error, RankLostError)
        assert str(error) == (
            "Rank 2 has not responded for 0.5 s while the others waited for it (comparing): check its machine "
            "and its log."
        )


def test_a_rank_that_is_slow_but_alive_is_waited_for(server, monkeypatch):
    monkeypatch.setattr(module, "SILENT_SECONDS", 1.5)
    monkeypatch.setattr(module, "KEEPALIVE_SECONDS", 0.05)
    pair = [StoreExchange(client(server), rank, 2) for rank in range(2)]

    def body(exchange, rank):
        time.sleep(2.5 * rank)
        return exchange.gather(rank, "a test")

    assert on_all_ranks(body, pair) == [[0, 1]] * 2
    on_all_ranks(lambda exchange, rank: exchange.close(), pair)


def test_an_exception_from_on_wait_ends_the_wait(server):
    looks = []

    def look():
        looks.append(1)
        if len(looks) == 5:
            raise KeyboardInterrupt

    exchange = StoreExchange(client(server), 1, 2, look)
    with pytest.raises(KeyboardInterrupt):
        exchange.gather(1, "a test")
    exchange.close()


def test_rank_0_waits_for_a_late_rank_as_long_as_it_is_alive(server, monkeypatch):
    monkeypatch.setattr(module, "LEAVE_SECONDS", 1.0)
    monkeypatch.setattr(module, "KEEPALIVE_SECONDS", 0.05)
    pair = [StoreExchange(client(server), rank, 2) for rank in range(2)]

    def body(exchange, rank):
        time.sleep(2.0 * rank)  # as if it were loading a model
        left = time.monotonic()
        exchange.close()
        return left, time.monotonic()

    (_, first_end), (second_left, _) = on_all_ranks(body, pair)
    assert first_end >= second_left


def test_rank_0_leaves_last_but_does_not_wait_for_ever(server, monkeypatch):
    pair = [StoreExchange(client(server), rank, 2) for rank in range(2)]
    leave = []

    def body(exchange, rank):
        if rank == 1:
            time.sleep(0.1)
            leave.append(1)
        exchange.close()
        if rank == 0:
            leave.append(0)

    on_all_ranks(body, pair)
    assert leave == [1, 0]
    monkeypatch.setattr(module, "LEAVE_SECONDS", 0.3)
    alone = StoreExchange(client(server).within("another"), 0, 2)
    alone.close()  # rank 1 never leaves


def test_a_second_close_does_nothing(server):
    exchange = StoreExchange(client(server), 1, 2)
    exchange.close()
    keys = server.num_keys()
    server.delete_key("run/left/1")
    exchange.close()
    assert server.num_keys() == keys - 1


class MortalStore:
    """A store whose calls fail once `is_gone` is set."""

    def __init__(self):
        self.is_gone = False

    def set(self, key, value):
        if self.is_gone:
            raise dist.DistError("gone")


@pytest.fixture
def mortal(monkeypatch):
    """(store, its exchange, the thread that sends keepalives)"""
    monkeypatch.setattr(module, "KEEPALIVE_SECONDS", 0.01)
    before = threading.enumerate()
    store = MortalStore()
    exchange = StoreExchange(store, 1, 2)
    [thread] = [thread for thread in threading.enumerate() if thread not in before]
    return store, exchange, thread


def test_keepalives_end_with_the_store_and_closing_does_not_wait(mortal):
    store, exchange, thread = mortal
    store.is_gone = True
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    exchange.close()


def test_keepalives_end_when_the_exchange_is_garbage_collected():
    before = threading.enumerate()
    exchange = StoreExchange(MortalStore(), 1, 2)
    [thread] = [thread for thread in threading.enumerate() if thread not in before]
    del exchange
    assert not thread.is_alive()
