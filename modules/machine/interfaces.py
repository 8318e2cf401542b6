"""The network interfaces of this machine."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys

_SIOCGIFADDR = 0x8915  # linux/sockios.h


def interface_towards(address: str) -> str | None:
    """The network interface through which this machine reaches `address`, which may be its own; None if unknown.

    Linux and IPv4 only. Also None for a name that resolves to loopback, as a Debian machine's own name does by default
    (127.0.1.1 in /etc/hosts): other machines can't reach it there.
    """
    with contextlib.suppress(OSError, UnicodeError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing, but makes the kernel choose a route
        own = probe.getsockname()[0]
        if own.startswith("127.") and not (address.startswith("127.") or address == "localhost"):
            return None
        return next((name for _, name in socket.if_nameindex() if _address_of(name, probe) == own), None)
    return None


def gloo_interface_problem(value: str) -> str | None:
    """What is wrong with GLOO_SOCKET_IFNAME, as a clause; None if it is empty or names interfaces of this machine."""
    if sys.platform == "win32" or not value:  # where names differ from those that gloo accepts
        return None
    there = [name for _, name in socket.if_nameindex()]
    missing = next((name for name in value.split(",") if name not in there), None)
    if missing is None:
        return None
    return f"GLOO_SOCKET_IFNAME names the network interface {missing!r}, and this machine has {', '.join(there)}"


def _address_of(name: str, probe: socket.socket) -> str | None:
    import fcntl

    request = struct.pack("256s", name.encode()[:15])
    with contextlib.suppress(OSError):  # an interface without an IPv4 address
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
    return None
