"""Network ports of this machine that are free."""

from __future__ import annotations

import contextlib
import socket

LOOPBACK = "127.0.0.1"
PORTS_TO_TRY = 100


def next_free_port(port: int, host: str = "") -> int | None:
    """The first from `port` on that nothing uses at this address of the machine, "" for all; None if none is near.

    One that another run has claimed is in use, though nothing listens there yet. Nothing is held: who comes first has
    the port.
    """
    for candidate in _near(port):
        with contextlib.suppress(OSError), _claim(candidate), socket.create_server((host, candidate)):
            return candidate
    return None


def claim_free_port(port: int, host: str) -> tuple[int, socket.socket] | None:
    """The same, and the socket that keeps it from all others who ask in these two ways, until it is closed.

    Ranks listen there only seconds later, when they have started: two runs that were started together would both find
    the port free.
    """
    for candidate in _near(port):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            claim = stack.enter_context(_claim(candidate))
            with socket.create_server((host, candidate)):
                stack.pop_all()
                return candidate, claim
    return None


def _claim(port: int) -> socket.socket:
    """The UDP port of that number, which ranks don't use; it ends with the process. Raises OSError if somebody has it.

    At the loopback always, so that all find it, whatever address they are to listen at.
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
