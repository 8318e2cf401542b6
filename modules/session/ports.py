"""Network ports of this machine that are free."""

from __future__ import annotations

import contextlib
import socket

PORTS_TO_TRY = 100


def next_free_port(port: int, host: str = "") -> int | None:
    """The first from `port` on that nothing uses at this address of the machine, "" for all; None if none is near."""
    for candidate in _near(port):
        with contextlib.suppress(OSError), socket.create_server((host, candidate)):
            return candidate
    return None


def claim_free_port(port: int, host: str) -> tuple[int, socket.socket] | None:
    """The same, and the socket that keeps it from all others who ask in this way, until it is closed.

    Ranks listen there only seconds later, when they have started: two runs that were started together would both find
    the port free. The claim is the UDP port of that number, which ranks don't use; it ends with the process.
    """
    for candidate in _near(port):
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with contextlib.suppress(OSError):
            claim.bind((host, candidate))
            with socket.create_server((host, candidate)):
                return candidate, claim
        claim.close()
    return None


def _near(port: int) -> range:
    return range(port, min(port + PORTS_TO_TRY, 65536))
