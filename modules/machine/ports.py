"""Find and reserve free network ports of this machine."""

from __future__ import annotations

import contextlib
import socket

LOOPBACK = "127.0.0.1"
PORTS_TO_TRY = 100


def next_free_port(port: int, host: str = "") -> int | None:
    """The first free port from `port` on at an address of this machine ("" for all); None if none is found nearby.

    A port that another run has claimed counts as busy, although nothing listens there yet. The port found is not
    reserved.
    """
    for candidate in _near(port):
        with contextlib.suppress(OSError), _claim(candidate), socket.create_server((host, candidate)):
            return candidate
    return None


def claim_free_port(port: int, host: str) -> tuple[int, socket.socket] | None:
    """As `next_free_port`, but also reserves the port against both functions until the returned socket is closed.

    Ranks listen only seconds later, after they have started: without it, two runs started together would both find the
    port free.
    """
    for candidate in _near(port):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            claim = stack.enter_context(_claim(candidate))
            with socket.create_server((host, candidate)):
                stack.pop_all()
                return candidate, claim
    return None


def _claim(port: int) -> socket.socket:
    """Bind the UDP port of that number, which ranks don't use, until the process ends. Raises OSError if it is taken.

    Always at loopback, so that all processes check the same place, whatever address they listen at.
    """
    claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        claim.bind((LOOPBACK, port))
    except OSError:
        claim.close()
        raise
    return claim


def _near(port: int) -> range:
    return range(port, min(port + PORTS_TO_TRY, 65536))
