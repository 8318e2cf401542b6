from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import network_namespaces
from tests.support.network_namespaces import NamespacesNotAllowed, make_two_hosts
from tests.support.waiting import wait_until

SERVE = "import socket; s = socket.create_server(('', 5000)); print('up', flush=True); s.accept()[0].sendall(b'hello')"
ASK = "import socket, sys; print(socket.create_connection((sys.argv[1], 5000), 60).recv(9).decode())"


def test_two_hosts_reach_each_other_and_nothing_else(two_hosts):
    first, second = two_hosts
    server = first.popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE)
    assert server.stdout.readline() == b"up\n"
    assert server.pid in first.pids()
    assert second.pids() == []
    own = second.run([sys.executable, "-c", ASK, "127.0.0.1"])  # each has a loopback of its own
    assert "Connection refused" in own.stderr
    assert second.run([sys.executable, "-c", ASK, first.address]).stdout == "hello\n"
    assert "unreachable" in second.run([sys.executable, "-c", ASK, "192.0.2.1"]).stderr
    server.stdout.close()


def test_nothing_is_left_of_them(two_hosts):
    with make_two_hosts() as (host, _):  # a second pair does not meet the first
        process = host.popen(["sh", "-c", "trap '' TERM; sleep 600 & exec sleep 600"])
        wait_until(lambda: len(host.pids()) == 2)
        pids = host.pids()
    assert process.returncode is not None
    assert not any(_is_running(pid) for pid in pids)


def test_a_machine_that_makes_none_says_why(monkeypatch):
    monkeypatch.setattr(network_namespaces, "TOOLS", ("no-such-tool",))
    with pytest.raises(NamespacesNotAllowed), make_two_hosts():
        pass


def _is_running(pid: int) -> bool:
    """Not where only its exit code is left, for a parent that may take it late."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except FileNotFoundError:
        return False
