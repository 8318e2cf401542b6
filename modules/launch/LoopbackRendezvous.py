"""The rendezvous of torchrun's agent on a single machine, with a store that only this machine reaches."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from modules.machine.ports import LOOPBACK


class LoopbackRendezvous(StaticTCPRendezvous):
    """torch's static rendezvous of one node, with a store that listens on the loopback address alone.

    torch's own stores listen on all network interfaces, whatever address they are given, and its c10d rendezvous
    unpickles what it finds in one: whoever can connect to it runs code in the agent.

    listener: a listening socket, which the store takes over.
    """

    BACKEND = "chorus-loopback"  # as rdzv_backend names it

    def __init__(self, parameters: RendezvousParameters, listener: socket.socket):
        port = listener.getsockname()[1]
        seconds = int(parameters.config.get("timeout", 600))
        super().__init__(LOOPBACK, port, rank=0, world_size=1, run_id=parameters.run_id, timeout=seconds)
        self._store = TCPStore(
            LOOPBACK,
            port,
            is_master=True,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )

    def get_backend(self) -> str:
        return self.BACKEND
