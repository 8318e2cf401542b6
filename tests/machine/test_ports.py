from __future__ import annotations

import contextlib
import socket

import pytest

from modules.machine.ports import LOOPBACK, claim_free_port, next_free_port
from tests.support.ports import free_port


@pytest.fixture
def port():
    return free_port()


def test_a_free_port_is_the_one_asked_for(port):
    assert next_free_port(port) == port


def test_a_port_that_something_listens_at_is_passed_over(port):
    with socket.create_server(("", port)):
        assert next_free_port(port, LOOPBACK) > port


def test_a_port_that_is_claimed_goes_to_nobody_else_until_the_claim_ends(port):
    first, claim = claim_free_port(port, LOOPBACK)
    with claim:
        second, other_claim = claim_free_port(port, LOOPBACK)
        other_claim.close()
        with socket.create_server((LOOPBACK, first)):  # the port can still be listened to by its owner
            pass
    third, claim = claim_free_port(port, LOOPBACK)
    claim.close()
    assert first == third == port < second


@pytest.mark.parametrize("host", [LOOPBACK, ""])
def test_a_port_that_is_claimed_is_not_free_though_nothing_listens_there_yet(host, port):
    claimed, claim = claim_free_port(port, LOOPBACK)
    with claim:
        assert next_free_port(claimed, host) > claimed
    assert next_free_port(claimed, host) == claimed


def test_a_look_for_a_free_port_holds_none(port):
    next_free_port(port, LOOPBACK)
    found, claim = claim_free_port(port, LOOPBACK)
    claim.close()
    assert found == port


def test_a_port_that_something_listens_at_is_not_claimed(port):
    with socket.create_server((LOOPBACK, port)):
        found, claim = claim_free_port(port, LOOPBACK)
        claim.close()
    assert found > port


def test_no_port_is_found_where_all_are_taken(port, monkeypatch):
    monkeypatch.setattr("modules.machine.ports.PORTS_TO_TRY", 2)
    with contextlib.ExitStack() as stack:
        for taken in (port, port + 1):
            with contextlib.suppress(OSError):  # already taken, by another program
                stack.enter_context(socket.create_server((LOOPBACK, taken)))
        assert next_free_port(port, LOOPBACK) is None
        assert claim_free_port(port, LOOPBACK) is None


def test_the_search_ends_with_the_last_port():
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # already taken
            stack.enter_context(socket.create_server((LOOPBACK, 65535)))
        assert next_free_port(65535, LOOPBACK) is None
