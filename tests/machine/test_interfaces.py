from __future__ import annotations

import sys
from pathlib import Path

import pytest

from modules.machine.interfaces import gloo_interface_problem, interface_towards

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

ASK = "import sys; from modules.machine.interfaces import interface_towards as f; print([f(a) for a in sys.argv[1:]])"


def test_the_loopback_leads_to_this_machine():
    assert interface_towards("127.0.0.1") == interface_towards("localhost") == "lo"


@pytest.mark.parametrize("address", ["a" * 300, "::1", ""])
def test_an_address_that_leads_nowhere_has_none(address):
    assert interface_towards(address) is None


def test_a_host_finds_the_cable_to_the_other_and_to_itself(two_hosts):
    first, second = two_hosts
    names = [first.address, second.address, "192.0.2.1"]
    for host in two_hosts:
        done = host.run([sys.executable, "-c", ASK, *names], cwd=ROOT)
        assert done.stdout.strip() == "['eth0', 'eth0', None]", done.stderr


def test_an_interface_that_gloo_is_told_and_that_is_not_there_is_named():
    assert gloo_interface_problem("") is gloo_interface_problem("lo") is None
    assert gloo_interface_problem("lo,eth77").startswith(
        "GLOO_SOCKET_IFNAME names the network interface 'eth77', and this machine has "
    )
