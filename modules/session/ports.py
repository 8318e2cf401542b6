"""Network ports of this machine that are free."""

from __future__ import annotations

import contextlib
import socket

PORTS_TO_TRY = 100


def next_free_port(port: int, host: str = "") -> int | None:
    """The first from `port` on that nothing uses at this address of the machine, "" for all; None if none is near."""
    for candidate in range(port, min(port + PORTS_TO_TRY, 65536)):
        with contextlib.suppress(OSError), socket.create_server((host, candidate)):
            return candidate
    return None
