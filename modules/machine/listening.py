"""Which network ports processes of this machine listen on, and who can connect to them."""

from __future__ import annotations

import contextlib
import ipaddress


def listening_sockets(pid: int) -> set[tuple[str, int]]:
    """(address, port) of each TCP socket that a process listens on; none of one that is gone or another user's."""
    import psutil

    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return set()
    return {(one.laddr.ip, one.laddr.port) for one in connections if one.status == psutil.CONN_LISTEN}


def is_open(address: str) -> bool:
    """Whether other machines can connect to a socket that listens on this address."""
    return not ipaddress.ip_address(address).is_loopback


def open_ports_of_host(port: int) -> list[int]:
    """The ports, open to other machines, of the process that listens on `port`: this one or one that it descends from.

    Empty if that process listens on the loopback address alone or is not found.
    """
    import psutil

    with contextlib.suppress(psutil.Error):  # an ancestor has just ended
        process: psutil.Process | None = psutil.Process()
        while process is not None:
            sockets = listening_sockets(process.pid)
            if port in {number for _, number in sockets}:
                return sorted(number for address, number in sockets if is_open(address))
            process = process.parent()
    return []
