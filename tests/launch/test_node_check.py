from __future__ import annotations

import contextlib
import errno
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from modules.config.errors import UserError
from modules.config.files import config_from_values
from modules.launch import NodeMeeting, SignedLines, node_check
from modules.launch.node_check import check_nodes, describe_node, is_own_address, refused_together
from modules.machine.ports import next_free_port
from tests.support.ports import free_port
from tests.support.waiting import wait_until

JOIN_SECONDS = 20.0


@pytest.fixture
def port():
    return free_port()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(node_check, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(NodeMeeting, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(NodeMeeting, "LINGER_SECONDS", 0.2)


class Checking:
    """`check_nodes` running in a thread, as on a separate machine."""

    def __init__(self, config, **options):
        self.told: queue.Queue[str] = queue.Queue()
        self.found: list[str] | None = None
        self.refusal = ""
        self._thread = threading.Thread(target=self._run, args=(config,), kwargs=options, daemon=True)
        self._thread.start()

    def _run(self, config, **options):
        try:
            self.found = check_nodes(config, self.told.put, **options)
        except UserError as error:
            self.refusal = str(error)

    def wait(self) -> Checking:
        self._thread.join(JOIN_SECONDS)
        assert not self._thread.is_alive()
        return self


@pytest.fixture
def start(port, quick) -> Iterator[Callable[..., Checking]]:
    """A function that starts the check of one node: start(node_rank, nodes=2, options={}, **settings)."""

    nodes = []

    def start(node_rank: int, num_nodes: int = 2, wait_seconds: float = JOIN_SECONDS, options=None, **settings):
        config = node_config(port, node_rank, num_nodes, **settings)
        nodes.append(Checking(config, wait_seconds=wait_seconds, **(options or {})))
        return nodes[-1]

    yield start
    for node in nodes:
        node.wait()  # before its monkeypatches are undone


def node_config(port: int, node_rank: int, num_nodes: int = 2, **settings):
    places = {"master_addr": "127.0.0.1", "initial_port": str(port)}
    return config_from_values(
        {"enable_multi_gpu": True, "node_rank": node_rank, "num_nodes": num_nodes, **places, **settings}
    )


def refusals(*nodes: Checking) -> set[str]:
    return {node.wait().refusal for node in nodes}


def test_nodes_that_are_alike_go_on_together_in_whatever_order_they_came(start, port):
    last = start(2, 3, cache_dir="/c")
    assert last.told.get(timeout=JOIN_SECONDS).startswith("waiting for node 0 (")
    first = start(0, 3, cache_dir="/a", workspace_dir="/w")
    assert first.told.get(timeout=JOIN_SECONDS).startswith("waiting for node 1 and 1 more (")
    second = start(1, 3, world_size=7, concepts=[])
    found = first.wait().found
    assert found == second.wait().found == last.wait().found
    assert found[:2] == ["Node 1: 127.0.0.1", "Node 2: 127.0.0.1"]
    assert found[2].startswith("3 nodes, alike: settings, Chorus, Python 3.")
    socket.create_server(("", port)).close()  # the port is free for the training


@pytest.mark.parametrize(("ahead", "words"), [(40, "is 40 s ahead of"), (-90, "is 90 s behind"), (1, "")])
def test_a_clock_that_differs_is_told_to_all_and_refuses_nothing(ahead, words, start, monkeypatch):
    clocks = SimpleNamespace(monotonic=time.monotonic, sleep=time.sleep, time=lambda: time.time() + ahead)
    monkeypatch.setattr(node_check, "time", clocks)  # of the others: that of node 0 is read in NodeMeeting
    found = [node.wait().found for node in (start(0), start(1))]
    assert found[0] == found[1]
    assert [line for line in found[0] if "clock" in line] == (
        [f"The clock of node 1 {words} that of node 0: have both set by NTP"] if words else []
    )


def test_other_settings_are_named_on_all_nodes(start):
    nodes = [start(0, 3, seed=1), start(1, 3, seed=1), start(2, 3, seed=2, optimizer={"learning_rate": 0.5})]
    assert refusals(*nodes) == {
        "Node 2 (127.0.0.1) has other settings (optimizer.learning_rate, seed): bring it to what node 0 has, and start "
        "all again."
    }


def test_other_versions_are_named_on_all_nodes(start, monkeypatch):
    first = start(0)
    first.told.get(timeout=JOIN_SECONDS)
    own = describe_node(config_from_values({}))
    monkeypatch.setattr(node_check, "_version", lambda package: "1.0" if package == "torch" else own[package])
    monkeypatch.setattr(node_check, "PACKAGE_FOLDER", node_check.PACKAGE_FOLDER / "config")
    second = start(1)
    [text] = refusals(first, second)
    assert f"has another version of Chorus, torch 1.0 instead of {own['torch']}: " in text


def test_what_a_start_was_told_beside_the_settings_has_to_be_alike(start):
    [text] = refusals(start(0, options={"resume": True}), start(1, options={"resume": False}))
    assert text.startswith("Node 1 (127.0.0.1) has --resume not given instead of given: bring it to what node 0 has")
    [text] = refusals(start(0, options={"ranks": 8}), start(1, options={"ranks": 4}))
    assert "has world_size 4 instead of 8: " in text


def test_a_machine_without_a_gpu_among_others_with_gpus_is_told_to_all(start, monkeypatch):
    monkeypatch.setattr(node_check, "list_gpus", lambda: ["a GPU"])
    first = start(0)
    first.told.get(timeout=JOIN_SECONDS)
    monkeypatch.setattr(node_check, "list_gpus", lambda: [])
    [text] = refusals(first, start(1))
    assert text.startswith("Node 1 (127.0.0.1) has backend gloo instead of nccl: ")


def test_what_is_not_known_of_a_start_is_not_compared(start):
    first, second = start(0, options={"resume": True, "ranks": 8}), start(1)
    assert first.wait().found == second.wait().found != []


@pytest.mark.parametrize("refusing", [0, 1])
def test_what_one_node_refuses_is_told_to_the_others(refusing, start, port, monkeypatch):
    monkeypatch.setattr(NodeMeeting, "LINGER_SECONDS", JOIN_SECONDS)
    others = [start(rank, 3) for rank in range(3) if rank != refusing]
    monkeypatch.setattr(node_check, "REFUSING_SECONDS", JOIN_SECONDS)
    own = refused_together(node_config(port, refusing, 3), lambda text: None)
    with pytest.raises(UserError, match=r"^world_size 8: this machine has 4$"), own:
        raise UserError("world_size 8: this machine has 4")
    [text] = refusals(*others)
    name = "Node 1 (127.0.0.1)" if refusing else "Node 0"
    assert text == f"{name} can't train: world_size 8: this machine has 4"


@pytest.mark.parametrize("node_rank", [0, 1])
def test_a_node_that_refuses_says_so_though_the_others_do_not_come(node_rank, port, monkeypatch):
    monkeypatch.setattr(node_check, "REFUSING_SECONDS", 0.1)
    with pytest.raises(UserError, match=r"^no GPU$"), refused_together(node_config(port, node_rank), lambda text: None):
        raise UserError("no GPU")


def test_a_node_rank_that_is_used_twice_is_told_to_all(start):
    first, second = start(0, 3), start(1, 3)
    second.told.get(timeout=JOIN_SECONDS)
    assert refusals(first, second, start(1, 3)) == {
        "node_rank 1 was given twice, to 127.0.0.1 and to 127.0.0.1: give every machine its own, 0 to 2."
    }


def test_two_machines_that_are_both_node_0_are_told_so(start, monkeypatch):
    first = start(0)
    first.told.get(timeout=JOIN_SECONDS)
    monkeypatch.setattr(NodeMeeting.socket, "create_server", lambda place, family: socket.socket(family))  # elsewhere
    monkeypatch.setattr(node_check, "is_own_address", lambda address: False)
    [text] = refusals(first, start(0))
    assert text.startswith("node_rank 0 was given twice, to the machine that has master_addr and to 127.0.0.1: ")


def test_another_number_of_nodes_is_told_to_both(start):
    [text] = refusals(start(0, 2), start(1, 3))
    assert "was started for 3 nodes and node 0 for 2" in text


def test_a_node_that_does_not_come_is_named_to_those_that_have(start):
    [text] = refusals(start(0, 3, wait_seconds=0.3), start(1, 3))
    assert text.startswith("Node 2 did not come within 0.3 s: start its command, and see that it reaches ")


def test_node_0_does_not_come(start, monkeypatch):
    monkeypatch.setattr(node_check, "is_own_address", lambda address: False)  # as on another machine
    assert "Node 0 did not come to 127.0.0.1:" in start(1, wait_seconds=0.1).wait().refusal


def test_a_node_that_has_left_can_come_again(start):
    leaves = threading.Event()
    first, second = start(0, 3), start(1, 3, options={"stopping": leaves.is_set})
    second.told.get(timeout=JOIN_SECONDS)
    leaves.set()
    assert second.wait().found == []
    again, last = start(1, 3), start(2, 3)
    assert first.wait().found == again.wait().found == last.wait().found != []


def introduce(visitor: socket.socket, message: dict) -> None:
    """Answers node 0's greeting with a message, in a thread: node 0 has yet to accept the visitor."""

    def answer() -> None:
        lines = node_check._greeted(visitor, visitor.makefile("rb"))
        lines.say(message)

    threading.Thread(target=answer, daemon=True).start()


@pytest.fixture
def meeting(port):
    """A meeting of three connected nodes: (node 0's side, the connections of nodes 1 and 2)."""
    own = describe_node(node_config(port, 0, 3))
    with NodeMeeting.NodeMeeting(own, port) as meeting, contextlib.ExitStack() as stack:
        visitors = []
        for rank in (1, 2):
            visitor = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            introduce(visitor, {**own, "node_rank": rank})
            visitors.append(visitor)
            while rank in meeting.missing:
                meeting.poll()
        yield meeting, visitors


def test_a_node_that_leaves_in_the_last_moment_is_missed(meeting):
    node_0, (_, second) = meeting
    assert node_0.all_are_here()
    second.close()
    assert (node_0.all_are_here(), node_0.missing) == (False, [2])


def test_node_0_does_not_go_on_where_one_did_not_hear_that_all_are_alike(meeting, monkeypatch):
    node_0, (first, _) = meeting

    def say(connection, message):
        if connection.getpeername() == first.getsockname():
            raise BrokenPipeError

    monkeypatch.setattr(SignedLines, "say", say)
    assert node_0.end() == []
    assert node_0.refusal == "Node 1 (127.0.0.1) disconnected just when all were there: start all again."


def test_a_machine_that_refuses_for_long_is_told_of(start, monkeypatch):
    monkeypatch.setattr(node_check, "is_own_address", lambda address: False)  # as on another machine
    monkeypatch.setattr(node_check, "PATIENCE_SECONDS", 0.0)
    assert (
        start(1, wait_seconds=0.1)
        .told.get(timeout=JOIN_SECONDS)
        .startswith("waiting for node 0; something at 127.0.0.1 refuses (")
    )


def test_a_check_can_be_stopped_while_it_waits(start, port):
    leaves = threading.Event()
    node = start(0, options={"stopping": leaves.is_set})
    node.told.get(timeout=JOIN_SECONDS)
    leaves.set()
    assert (node.wait().found, node.refusal) == ([], "")
    socket.create_server(("", port)).close()


def test_those_who_wait_are_told_when_node_0_has_gone(start, monkeypatch):
    monkeypatch.setattr(node_check, "TELL_SECONDS", 0.01)
    leaves = threading.Event()
    first, second = start(0, 3, options={"stopping": leaves.is_set}), start(1, 3)
    while "node 2" not in second.told.get(timeout=JOIN_SECONDS):
        pass
    leaves.set()
    first.wait()
    assert "disconnected while this node waited" in second.wait().refusal


def test_a_busy_port_is_refused_on_both_sides(start, port):
    with socket.create_server(("", port)) as server:
        text = start(0).wait().refusal
        assert text.startswith(f"initial_port {port} is busy here (")
        assert f"such as {next_free_port(port + 1)}." in text
        node = start(1)
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n")
            assert "Something other than node 0's check answers at 127.0.0.1:" in node.wait().refusal


@pytest.mark.parametrize("words", [b"", b"\n", b"[1]\n", b'{"node_rank": 1}\n', b"[" * 100_000, b"\xff" * 9000])
def test_visitors_do_not_disturb(words, start, port, monkeypatch):
    monkeypatch.setattr(NodeMeeting, "HELLO_SECONDS", 0.1)
    first = start(0)
    first.told.get(timeout=JOIN_SECONDS)
    with socket.create_connection(("127.0.0.1", port)) as visitor:
        visitor.sendall(words)
        assert json.loads(visitor.makefile().readline())["mark"]
        assert start(1).wait().found == first.wait().found != []


@pytest.mark.parametrize("tokens", [("a" * 32, "b" * 32), ("a" * 32, ""), ("", "b" * 32)])
def test_a_machine_with_another_token_is_told_so_and_does_not_disturb(tokens, start, monkeypatch):
    given = {"other": tokens[1]}
    monkeypatch.setattr(NodeMeeting, "token_of", lambda: tokens[0].encode())
    monkeypatch.setattr(node_check, "token_of", lambda: given["other"].encode())
    monkeypatch.setattr(node_check, "TELL_SECONDS", 0.05)
    first = start(0)
    refusal = start(1).wait().refusal
    assert "has another CHORUS_TOKEN than this node, or one of them has none: run the commands as" in refusal
    while "the machine at 127.0.0.1 has another CHORUS_TOKEN, or none" not in first.told.get(timeout=JOIN_SECONDS):
        pass
    given["other"] = tokens[0]
    assert start(1).wait().found == first.wait().found != []


def test_what_a_stranger_says_in_the_place_of_node_0_is_not_believed(port, start, monkeypatch):
    monkeypatch.setenv("CHORUS_TOKEN", "a" * 32)
    node = start(1)
    with socket.create_server(("127.0.0.1", port)) as server:
        connection, _ = server.accept()
        with connection:
            SignedLines.say(connection, {"mark": NodeMeeting.MARK, "nonce": "0"})
            SignedLines.say(connection, {"found": ["forged"]})
            assert "has another CHORUS_TOKEN than this node" in node.wait().refusal


def test_a_message_can_not_write_to_the_terminal_as_it_likes():
    assert NodeMeeting.plain("a\x1b[31m\nb") == r"a\x1b[31m\nb"


def test_an_address_that_nobody_has_is_given_up_soon(start, monkeypatch):
    monkeypatch.setattr(node_check, "UNREACHABLE_SECONDS", 0.05)
    text = start(1).wait().refusal
    assert text.startswith("master_addr '127.0.0.1' is this machine itself, which is node 1, and nothing listens there")
    monkeypatch.setattr(node_check.socket, "create_connection", _unreachable)
    text = start(1, master_addr="192.0.2.1").wait().refusal
    assert text.startswith("Node 0 can't be reached at 192.0.2.1:")
    assert "(No route to host)" in text


def _unreachable(place, timeout):
    raise OSError(113, "No route to host")


def test_a_machine_that_has_the_address_and_is_not_node_0_tells_the_others(start, monkeypatch):
    monkeypatch.setattr(NodeMeeting, "LINGER_SECONDS", JOIN_SECONDS)  # which it does not take when all have come
    monkeypatch.setattr(node_check, "UNREACHABLE_SECONDS", 0.05)
    real = node_check.is_own_address
    monkeypatch.setattr(node_check, "is_own_address", lambda address: False)  # as on another machine
    other = start(1)
    assert other.told.get(timeout=JOIN_SECONDS).startswith("waiting for node 0 (")  # it has asked that by now
    monkeypatch.setattr(node_check, "is_own_address", real)
    assert start(1).wait().refusal.startswith("master_addr '127.0.0.1' is this machine itself, which is node 1, and ")
    assert other.wait().refusal == (
        "The machine that has master_addr, 127.0.0.1, was started as node 1: give it node_rank 0, or write the address "
        "of node 0."
    )


@pytest.fixture
def lingers(monkeypatch):
    """Shortens the time that a refusing node waits for the others."""
    monkeypatch.setattr(NodeMeeting, "LINGER_SECONDS", 100 * JOIN_SECONDS)
    monkeypatch.setattr(node_check, "UNREACHABLE_SECONDS", 0.05)


def meet_at(port: int) -> None:
    """Wait until a node listens at the port, by connecting as an unknown visitor."""

    def is_met() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as visitor:
            return SignedLines.read_line(visitor.makefile("rb")).get("mark") == NodeMeeting.MARK
        return False

    wait_until(is_met)


def test_a_machine_that_tells_the_others_that_nobody_leads_can_be_stopped(start, port, lingers):
    leaves = threading.Event()
    node = start(1, options={"stopping": leaves.is_set})
    meet_at(port)
    leaves.set()
    assert node.wait().refusal.startswith("master_addr '127.0.0.1' is this machine itself, which is node 1, and ")


def test_node_0_can_be_stopped_while_it_tells_why_there_is_no_run(start, lingers):
    leaves = threading.Event()
    first = start(0, 3, options={"stopping": leaves.is_set})
    first.told.get(timeout=JOIN_SECONDS)
    assert start(1, 2).wait().refusal
    leaves.set()
    assert "was started for 2 nodes and node 0 for 3" in first.wait().refusal


def test_a_network_that_fails_while_others_are_told_hides_no_reason(start, port, monkeypatch):
    def refuse(meeting, reason):
        raise OSError(errno.ENETDOWN, "Network is down")

    monkeypatch.setattr(NodeMeeting.NodeMeeting, "refuse", refuse)
    monkeypatch.setattr(node_check, "UNREACHABLE_SECONDS", 0.05)
    assert start(1).wait().refusal.startswith("master_addr '127.0.0.1' is this machine itself, which is node 1, and ")
    with pytest.raises(UserError, match=r"^no GPU$"), refused_together(node_config(port, 0), lambda text: None):
        raise UserError("no GPU")


def test_a_visitor_who_has_gone_before_it_was_taken_ends_no_meeting(meeting, port):
    node_0, _ = meeting
    gone = iter([ConnectionAbortedError, BlockingIOError])
    server = node_0._server

    class Server:
        def __getattr__(self, name):
            return getattr(server, name)

        def accept(self):
            if kind := next(gone, None):
                raise kind
            return server.accept()

    node_0._server = Server()
    with socket.create_connection(("127.0.0.1", port)) as visitor:
        introduce(visitor, {"node_rank": 2, "num_nodes": 2})
        while not node_0.refusal:
            node_0.poll()
    assert list(gone) == []


def test_a_name_that_nobody_has_is_a_mistake(start, monkeypatch):
    real = socket.getaddrinfo

    def look_up(name, *arguments, **options):  # some name servers resolve everything
        if name == "no.such.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(name, *arguments, **options)

    monkeypatch.setattr(node_check.socket, "getaddrinfo", look_up)
    for node_rank in (0, 1):
        assert "master_addr 'no.such.invalid'" in start(node_rank, master_addr="no.such.invalid").wait().refusal
    assert "there is no such machine" in start(1, master_addr="a" * 300).wait().refusal


def test_the_address_of_node_0_has_to_be_its_own(start, monkeypatch):
    assert is_own_address("127.0.0.1")
    assert not is_own_address("192.0.2.1")  # TEST-NET-1, unassigned
    monkeypatch.setattr(node_check.socket, "create_connection", _unreachable)
    text = start(0, master_addr="192.0.2.1").wait().refusal
    assert text.startswith("master_addr '192.0.2.1' is not an address of this machine, which is node 0")
