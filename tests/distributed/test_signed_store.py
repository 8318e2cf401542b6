"""Values that someone else writes to the ranks' store, as anyone can who reaches its port, are as if not there."""

from __future__ import annotations

import base64
import pickle
import threading

import pytest
import torch.distributed as dist

from modules.distributed import StoreExchange as exchange_module
from modules.distributed.errors import RanksError
from modules.distributed.SignedStore import ABSENT, SignedStore
from modules.distributed.store_semaphore import store_semaphore
from modules.distributed.StoreExchange import StoreExchange
from tests.support.waiting import PATIENCE_SECONDS, wait_until

KEY = b"the key of this run"


@pytest.fixture
def raw():
    return dist.HashStore()


@pytest.fixture
def store(raw):
    return SignedStore(raw, KEY, "run")


class Bomb:
    """Its pickle runs code."""

    def __reduce__(self):
        return pytest.fail, ("a pickle from the store ran",)


FORGED = [
    b"",
    b"x",
    b"{}",
    b"0" * 64 + b'"yes"',
    b"\xff" * 80,
    pickle.dumps(Bomb()),
    base64.b64encode(pickle.dumps(Bomb())),
    b"[" * 100_000,
]


@pytest.mark.parametrize("value", [None, True, 1.5, "é", [], {"a": [1, None]}])
def test_plain_data_arrives(value, store, raw):
    store.set("a", value)
    assert SignedStore(raw, KEY, "run").read("a", ABSENT) == value


@pytest.mark.parametrize("forged", FORGED, ids=range(len(FORGED)))
def test_what_others_write_is_as_if_it_were_not_there(forged, store, raw):
    store.set("a", "yes")
    raw.set("a", forged)
    assert store.read("a", "nothing") == "nothing"
    assert store.is_foreign("a")
    assert store.agree("a", "ours") == store.read("a") == "ours"
    assert not store.is_foreign("a")


def test_values_can_not_be_moved_to_another_place(store, raw):
    store.set("a", "yes")
    signed = raw.get("a")
    raw.set("b", signed)
    raw.set("runtime-0/a", signed)
    assert not store.has("b")
    assert not store.within("runtime-0").has("a")
    assert not SignedStore(raw, KEY, "another run").has("a")
    assert not store.signed_with(b"another key").has("a")
    assert store.has("a")


def test_even_without_a_key_what_is_no_json_is_as_if_it_were_not_there(raw):
    store = SignedStore(raw, b"", "run")
    for text in (b"{", b"[" * 100_000, b"\xff"):
        raw.set("a", store._signature("a", text).encode() + text)
        assert not store.has("a")


def test_the_first_value_is_agreed_on(store, raw):
    assert [store.agree("a", value) for value in ("first", "second")] == ["first", "first"]


def test_a_value_that_never_comes_is_told_with_what_to_look_at(store):
    with pytest.raises(RanksError, match="no signed value for 'a' after 0 s: see the logs of the other ranks"):
        store.wait_for("a", 0.0)


def test_a_rank_writes_again_what_others_have_overwritten(raw, monkeypatch):
    monkeypatch.setattr(exchange_module, "KEEPALIVE_SECONDS", 0.02)
    pair = [StoreExchange(SignedStore(raw, KEY, "run"), rank, 2) for rank in range(2)]
    values = []
    first = threading.Thread(target=lambda: values.append(pair[0].gather("first", "a test")), daemon=True)
    first.start()
    pair[0].publish("posted", 7)
    wait_until(lambda: raw.check(["exchange/1/0"]))
    for key in ("exchange/1/0", "alive/0", "posted"):
        raw.set(key, "overwritten")
    assert pair[1].gather("second", "a test") == ["first", "second"]
    first.join(PATIENCE_SECONDS)
    assert values == [["first", "second"]]
    wait_until(lambda: SignedStore(raw, KEY, "run").read("posted") == 7)
    for exchange in reversed(pair):
        exchange.close()


def test_a_semaphore_that_others_write_to_still_lets_in(store, raw):
    with store_semaphore(store, "loading", 1, PATIENCE_SECONDS):
        for number in range(3):
            raw.set(f"loading/came/{number}", "overwritten")
    raw.set("loading/gone/0", "overwritten")
    with store_semaphore(store, "loading", 1, limit_seconds=0.1):
        pass
