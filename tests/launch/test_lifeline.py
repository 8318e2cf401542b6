import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from modules.distributed.Heartbeat import LIMIT_VARIABLE, PHASE_LIMITS
from modules.launch import lifeline as module
from modules.launch.lifeline import LIFELINE_VARIABLE, LOST_EXIT_CODE, Lifeline, LifelineServer
from tests.support.waiting import PATIENCE_SECONDS

HANGING_RANK = """
import time
from modules.launch.lifeline import Lifeline
Lifeline.from_environment(rank=1)
time.sleep(600)
"""


@pytest.fixture
def server():
    server = LifelineServer()
    yield server
    server.close()


@pytest.fixture
def connect(server):
    """A function that connects a rank that sets its `lost` event instead of ending the tests."""
    lines = []

    def make(rank=0):
        line = Lifeline.from_environment(rank, server.variables())
        line.lost = threading.Event()
        line.on_lost = line.lost.set
        lines.append(line)
        return line

    yield make
    for line in lines:
        line.close()


def poll_until(server, condition):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        server.poll(0.05)


def poll_for_a_while(server):
    for _ in range(5):
        server.poll(0.02)


def stranger(server, data=b""):
    host, _, port = server.address.rpartition(":")
    client = socket.create_connection((host, int(port)))
    client.sendall(data)
    return client


def is_dropped(server, client):
    client.settimeout(0.05)
    for _ in range(1000):
        server.poll(0)
        try:
            return client.recv(1) == b""
        except TimeoutError:
            continue
        except ConnectionResetError:
            return True
    return False


def test_a_rank_says_who_it_is(server, connect):
    connect(rank=3)
    poll_until(server, lambda: 3 in server.ranks)
    state = server.ranks[3]
    assert (state.rank, state.pid, state.phase) == (3, os.getpid(), "loading")
    assert state.limit_seconds == PHASE_LIMITS["loading"]
    assert state.is_connected
    assert (state.error, state.done, state.lost_at) == (None, None, None)


def test_no_variable_no_lifeline():
    assert Lifeline.from_environment(0, {}) is None


def test_a_watcher_that_is_gone_is_told_at_the_start():
    with socket.socket() as nobody:  # reserves a port without listening
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        with pytest.raises(OSError, match="refused"):
            Lifeline.from_environment(0, {LIFELINE_VARIABLE: f"127.0.0.1:{port}:token"})


def test_the_server_listens_on_loopback_only(server):
    assert server.variables() == {LIFELINE_VARIABLE: f"{server.address}:{server.token}"}
    assert server._listener.getsockname()[0] == "127.0.0.1"


def test_a_change_of_phase_is_told_at_once_and_taken_back(server, connect, monkeypatch):
    monkeypatch.setattr(module, "_BEAT_SECONDS", 1e9)
    line = connect()
    with line.phase("sampling"):
        poll_until(server, lambda: server.ranks and server.ranks[0].phase == "sampling")
        assert server.ranks[0].limit_seconds == PHASE_LIMITS["sampling"]
    poll_until(server, lambda: server.ranks[0].phase == "loading")


def test_beats_that_say_nothing_new_are_limited(server, connect, monkeypatch):
    line = connect()
    sent = []
    monkeypatch.setattr(line, "_send", lambda **message: sent.append(message))
    monkeypatch.setattr(module, "_BEAT_SECONDS", 1e9)
    for _ in range(1000):
        line.beat()
    assert len(sent) == 1  # the first one says that the rank has begun
    sent.clear()
    monkeypatch.setattr(module, "_BEAT_SECONDS", 0)
    line.beat()
    assert len(sent) == 1


def test_a_longer_limit_is_told_at_once(server, connect, monkeypatch):
    monkeypatch.setattr(module, "_BEAT_SECONDS", 1e9)
    line = connect()
    line.beat(limit_seconds=5000)
    poll_until(server, lambda: server.ranks and server.ranks[0].limit_seconds == 5000)


def test_one_limit_for_all_phases_can_be_set(server, connect, monkeypatch):
    monkeypatch.setenv(LIMIT_VARIABLE, "2.5")
    connect()
    poll_until(server, lambda: 0 in server.ranks)
    assert server.ranks[0].limit_seconds == 2.5


def test_a_limit_for_one_phase_leaves_the_others(server, connect, monkeypatch):
    monkeypatch.setenv(LIMIT_VARIABLE, "training=2.5")
    line = connect()
    poll_until(server, lambda: 0 in server.ranks)
    assert server.ranks[0].limit_seconds == PHASE_LIMITS["loading"]
    with line.phase("training"):
        poll_until(server, lambda: server.ranks[0].limit_seconds == 2.5)


def test_beats_move_the_time_of_the_last_one(server, connect, monkeypatch):
    monkeypatch.setattr(module, "_BEAT_SECONDS", 0)
    line = connect()
    poll_until(server, lambda: 0 in server.ranks)
    first = server.ranks[0].last_beat
    line.beat()
    poll_until(server, lambda: server.ranks[0].last_beat > first)


def test_beats_count_from_when_they_were_sent_and_those_of_steps_are_sent_at_once(server, connect):
    early, late = connect(rank=0), connect(rank=1)
    poll_until(server, lambda: len(server.ranks) == 2)
    for line in (early, late):
        line.beat(limit_seconds=60)
        time.sleep(0.01)
    sent_by = time.monotonic()
    time.sleep(0.1)
    poll_until(server, lambda: all(state.limit_seconds == 60 for state in server.ranks.values()))
    assert server.ranks[0].last_beat < server.ranks[1].last_beat < sent_by  # although both were read later
    assert [state.step_beats for state in server.ranks.values()] == [1, 1]


def test_an_error_is_told_with_its_traceback_and_is_no_loss(server, connect):
    before = time.monotonic()
    line = connect()
    line.failed("ValueError: no", "Traceback ...", is_symptom=True)
    line.failed("a later one", "")
    line.close()
    poll_until(server, lambda: server.ranks and not server.ranks[0].is_connected)
    error = server.ranks[0].error
    assert (error.text, error.traceback, error.is_user_error, error.is_symptom) == (
        "ValueError: no",
        "Traceback ...",
        False,
        True,
    )
    assert before <= error.time <= time.monotonic()
    assert server.ranks[0].lost_at is None


def test_a_huge_error_is_cut_and_arrives(server, connect):
    connect().failed("x" * 10_000_000, "y" * 10_000_000 + "end", is_user_error=True)
    poll_until(server, lambda: server.ranks and server.ranks[0].error)
    error = server.ranks[0].error
    assert error.text.startswith("xxx")
    assert error.traceback.endswith("end")
    assert error.is_user_error


def test_a_rank_that_is_done_may_leave_and_may_be_left(server, connect):
    line = connect()
    line.done("stopped", step=7)
    poll_until(server, lambda: server.ranks and server.ranks[0].done)
    assert (server.ranks[0].done, server.ranks[0].step) == ("stopped", 7)
    server.end_all()
    server.close()
    assert not line.lost.wait(0.2)
    assert server.ranks[0].lost_at is None


def test_a_connection_that_ends_without_a_word_is_a_loss(server, connect):
    connect().close()
    poll_until(server, lambda: server.ranks and server.ranks[0].lost_at is not None)
    assert not server.ranks[0].is_connected


def test_all_ranks_end_on_request(server, connect):
    first, second = connect(0), connect(1)
    poll_until(server, lambda: len(server.ranks) == 2)
    assert not first.lost.is_set()
    server.end_all()
    assert first.lost.wait(PATIENCE_SECONDS)
    assert second.lost.wait(PATIENCE_SECONDS)


def test_ranks_notice_the_end_of_the_watcher(server, connect):
    line = connect()
    poll_until(server, lambda: 0 in server.ranks)
    server.close()
    assert line.lost.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("how", ["end_all", "close"])
def test_a_hanging_process_ends_with_its_watcher(server, how):
    env = {**os.environ, **server.variables()}
    process = subprocess.Popen([sys.executable, "-c", HANGING_RANK], env=env, stderr=subprocess.PIPE, text=True)
    poll_until(server, lambda: 1 in server.ranks)
    getattr(server, how)()
    _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == LOST_EXIT_CODE
    assert stderr == "Rank 1 ends: its watcher has ended or says so.\n"


def test_silent_strangers_hold_up_nobody_and_are_dropped(server, connect, monkeypatch):
    clients = [stranger(server) for _ in range(20)]
    connect()
    poll_until(server, lambda: 0 in server.ranks)
    monkeypatch.setattr(module, "_HELLO_SECONDS", 0)
    assert all(is_dropped(server, client) for client in clients)
    poll_for_a_while(server)
    assert server.ranks[0].is_connected


HELLO = {"type": "hello", "rank": 0, "pid": 1, "phase": "loading", "limit": 1}


@pytest.mark.parametrize(
    "data",
    [
        json.dumps({**HELLO, "token": "0" * 32}).encode() + b"\n",
        json.dumps({**HELLO, "token": "é"}).encode() + b"\n",
        json.dumps({**HELLO, "token": None}).encode() + b"\n",
        json.dumps(HELLO).encode() + b"\n",
        b"GET / HTTP/1.1\r\n",
        b"[]\n",
        b"\xff\xfe\n",
        b"[" * 3000 + b"\n",
        b"x" * 100_000,
    ],
)
def test_strangers_are_dropped(server, data):
    client = stranger(server)
    try:
        client.sendall(data)
    except OSError:  # disconnected in the middle of a message
        return
    assert is_dropped(server, client)
    assert server.ranks == {}


def test_a_first_line_may_come_in_pieces(server):
    line = json.dumps({**HELLO, "token": server.token}).encode() + b"\n"
    client = stranger(server, line[:20])
    poll_for_a_while(server)
    assert server.ranks == {}
    client.sendall(line[20:])
    poll_until(server, lambda: 0 in server.ranks)
    client.close()


def test_a_poll_with_nothing_to_take_returns(server):
    server.poll(0.01)
    assert server.ranks == {}
