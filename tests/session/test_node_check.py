from __future__ import annotations

import os
import socket

import pytest

from modules.config.errors import UserError
from modules.config.files import config_from_values
from modules.session.node_check import (
    NodeAnswerer,
    ask_node,
    check_own_address,
    compare_nodes,
    describe_node,
    next_free_port,
)


@pytest.fixture
def port():
    with socket.create_server(("", 0)) as probe:
        return probe.getsockname()[1]


def test_another_machine_gets_what_machine_0_says(port):
    own = describe_node(config_from_values({}))
    answerer = NodeAnswerer(own, port)
    answerer.start()
    try:
        assert ask_node("127.0.0.1", port) == own
        assert answerer.asked == ["127.0.0.1"]
    finally:
        answerer.close()
    with pytest.raises(OSError):
        ask_node("127.0.0.1", port)
    socket.create_server(("", port)).close()  # it is free again


def test_machines_that_agree_differ_in_nothing():
    config = config_from_values({"num_nodes": 2, "cache_dir": "/a"})
    other = config_from_values({"num_nodes": 2, "cache_dir": "/b", "node_rank": 1})
    findings = compare_nodes(describe_node(config), describe_node(other))
    assert all(finding.is_ok for finding in findings)


def test_what_differs_is_named():
    own = describe_node(config_from_values({"seed": 1}))
    other = {**describe_node(config_from_values({"seed": 2})), "torch": "1.0", "Chorus": "0"}
    bad = " ".join(finding.text for finding in compare_nodes(own, other) if finding.is_ok is False)
    assert "Settings: not the same" in bad
    assert "Code of Chorus: not the same" in bad
    assert f"torch: {own['torch']} here, 1.0 on machine 0" in bad


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n", b"[1]", b'{"mark": "other"}', b"\xff" * 9000])
def test_something_else_at_the_port_is_no_machine(answer):
    with socket.create_server(("127.0.0.1", 0)) as server:
        import threading

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        assert ask_node("127.0.0.1", server.getsockname()[1]) is None


def test_a_machine_that_says_nothing_is_not_waited_for_long():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert ask_node("127.0.0.1", server.getsockname()[1], seconds=0.05) is None


def test_a_name_that_nobody_has_is_a_mistake():
    with pytest.raises(UserError, match=r"master_addr 'no\.such\.invalid'"):
        ask_node("no.such.invalid", 1)
    with pytest.raises(UserError, match="no such machine"):
        ask_node("a" * 300, 1)


def test_a_busy_port_is_refused_and_the_next_free_one_found():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UserError, match=f"initial_port {port} is busy"):
            NodeAnswerer({}, port).start()
        assert next_free_port(port) > port


def test_the_address_of_machine_0_has_to_be_its_own():
    assert check_own_address("127.0.0.1").is_ok
    assert check_own_address("192.0.2.1").is_ok is False  # TEST-NET-1, nobody's
    assert check_own_address("no.such.invalid").is_ok is False


@pytest.mark.skipif(os.name == "nt", reason="the driver may keep the port")
def test_a_check_can_be_closed_at_once_and_twice(port):
    answerer = NodeAnswerer({}, port)
    answerer.start()
    answerer.close()
    answerer.close()
    NodeAnswerer({}, port).close()
