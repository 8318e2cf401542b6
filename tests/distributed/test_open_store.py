"""What is said of a store that other machines can connect to."""

from __future__ import annotations

import contextlib
import socket

import pytest

from modules.distributed.environments import SlurmEnvironment, TorchrunEnvironment
from modules.distributed.open_store import open_store_warning


def torchrun(port: int, num_nodes: int = 1) -> TorchrunEnvironment:
    return TorchrunEnvironment(0, 0, 2, 2, 0, num_nodes, "127.0.0.1", port, "none/attempt_0", 0, has_store=True)


@pytest.fixture
def listen():
    """A function that makes this process listen on a free port of an address, and nothing else; gives the port."""
    with contextlib.ExitStack() as stack:
        yield lambda address: stack.enter_context(socket.create_server((address, 0))).getsockname()[1]


def test_a_store_that_only_this_machine_reaches_is_nothing_to_warn_of(listen):
    assert open_store_warning(torchrun(listen("127.0.0.1"))) == ""


def test_a_store_elsewhere_is_nothing_to_warn_of():
    assert open_store_warning(torchrun(9)) == ""


def test_an_open_store_is_told_with_its_port_and_a_way_to_start_without(listen):
    port = listen("")
    warning = open_store_warning(torchrun(port))
    assert warning.startswith(f"torchrun listens on port {port} of all network interfaces")
    assert "start with `python scripts/elastic_agent.py` instead of torchrun" in warning
    assert "run code" not in warning


def test_the_second_store_of_the_c10d_rendezvous_is_told_for_what_it_does(listen):
    first, second = sorted((listen(""), listen("")))
    warning = open_store_warning(torchrun(second))
    assert f"ports {first} and {second} of all network interfaces" in warning
    assert "run code as you" in warning


def test_several_machines_need_the_port_so_a_firewall_is_the_remedy(listen):
    port = listen("")
    assert "let only the machines of this run through" in open_store_warning(torchrun(port, num_nodes=2))
    by_srun = SlurmEnvironment(0, 0, 2, 1, 0, 2, "n1", port, "job", 0)
    assert open_store_warning(by_srun).startswith(f"The first rank listens on port {port}")
