"""One TCP connection on loopback between each rank and whoever watches the ranks of a node.

The rank tells what it does and how it ended; the connection itself tells the rest: its end means on either side that
the other process is gone, whatever ended it. Messages are lines of JSON; the first one of a rank carries a token.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from modules.distributed.Heartbeat import Heartbeat, Phase
from modules.session.printing import print_line

LIFELINE_VARIABLE = "CHORUS_LIFELINE"  # "host:port:token"
LOST_EXIT_CODE = 76  # of a rank that ended because its watcher did, or said so; 75 has SLURM queue a job again

_BEAT_SECONDS = 0.2  # between two beats that say nothing new
_SEND_SECONDS = 5.0  # a watcher that reads nothing for so long while its buffer is full is as good as gone
_HELLO_SECONDS = 10.0
_MAX_HELLO_BYTES = 4096  # strangers get no more memory than that
_MAX_LINE_BYTES = 1 << 20
_MAX_TEXT_CHARS = 16_000


@dataclass(frozen=True)
class RankError:
    """What a rank said when it failed. time: `time.monotonic` of the rank, which all processes of a machine share."""

    time: float
    text: str
    traceback: str
    is_user_error: bool
    is_symptom: bool


@dataclass
class RankState:
    """What is known of a rank by its connection. All times are of `time.monotonic`.

    last_beat: when it was sent; limit_seconds: how long the rank may be silent; lost_at: when the connection ended
    although the rank had neither failed nor was done.
    """

    rank: int
    pid: int
    connected_at: float
    last_beat: float
    phase: Phase
    limit_seconds: float
    is_connected: bool = True
    error: RankError | None = None
    done: Literal["finished", "stopped", "requeued"] | None = None
    done_at: float | None = None
    step: int | None = None
    lost_at: float | None = None


class LifelineServer:
    """The watcher's side: `poll` it often, and look at `ranks`. One thread at a time."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankState] = {}
        self.token = secrets.token_hex(16)
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def variables(self) -> dict[str, str]:
        """What the environment of the ranks needs."""
        return {LIFELINE_VARIABLE: f"{self.address}:{self.token}"}

    def poll(self, timeout_seconds: float) -> None:
        """Takes what has come; waits up to `timeout_seconds` for something to come, and for nobody longer."""
        for key, _ in self._selector.select(timeout_seconds):
            if key.data is None:
                self._accept()
            else:
                self._receive(key.data)
        self._drop_silent_strangers()

    def end_all(self) -> None:
        """Tells every rank to end at once."""
        for connection in self._connections():
            with contextlib.suppress(OSError):  # it is gone already, or does not read: signals are for that
                connection.socket.send(b'{"type": "end"}\n')

    def close(self) -> None:
        """Ends the connections: ranks that are not done end."""
        for connection in self._connections():
            connection.socket.close()
        self._listener.close()
        self._selector.close()

    def _connections(self) -> list[_Connection]:
        keys = self._selector.get_map() or {}  # None once it is closed
        return [key.data for key in keys.values() if key.data is not None]

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:  # who knocked has left
            return
        client.setblocking(False)
        self._selector.register(client, selectors.EVENT_READ, _Connection(client))

    def _receive(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        connection.unread += data
        limit = _MAX_LINE_BYTES if connection.state else _MAX_HELLO_BYTES
        try:
            for line in connection.lines():
                self._take(connection, json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # nobody of ours speaks so
            data = b""
        if not data or len(connection.unread) > limit:
            self._drop(connection)

    def _take(self, connection: _Connection, message: dict[str, Any]) -> None:
        state, now = connection.state, time.monotonic()
        if state is None:
            if not hmac.compare_digest(str(message["token"]).encode(), self.token.encode()):
                raise ValueError("a stranger")
            rank = int(message["rank"])
            connection.state = self.ranks[rank] = RankState(
                rank, int(message["pid"]), now, now, message["phase"], float(message["limit"])
            )
            return
        kind = message["type"]
        if kind == "beat":
            # by the clock of the rank: those of one look would all have come at once
            state.last_beat = float(message["at"])
            state.phase, state.limit_seconds = message["phase"], float(message["limit"])
        elif kind == "failed" and state.error is None:
            state.error = RankError(**message["error"])
        elif kind == "done":
            state.done, state.done_at, state.step = message["status"], now, message["step"]

    def _drop(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()
        state = connection.state
        if state is not None:
            state.is_connected = False
            if state.error is None and state.done is None:
                state.lost_at = time.monotonic()

    def _drop_silent_strangers(self) -> None:
        for connection in self._connections():
            if connection.state is None and time.monotonic() - connection.since > _HELLO_SECONDS:
                self._drop(connection)


class Lifeline(Heartbeat):
    """A rank's side. A watcher that is gone, or says so, ends this process at once, even inside a collective.

    Safe to use from several threads, not from signal handlers.
    """

    def __init__(self, address: str, token: str, rank: int):
        """Connects and says who this is. Raises OSError if nobody is there.

        address: "host:port".
        """
        super().__init__()
        self.rank = rank
        self.on_lost: Callable[[], None] = self._exit
        host, _, port = address.rpartition(":")
        self._sending = threading.Lock()
        self._is_over = False
        limit = self._limit(None)
        self._sent_phase, self._sent_limit, self._sent_at = self._phase, limit, time.monotonic()
        self._socket = socket.create_connection((host, int(port)), timeout=_SEND_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._send(type="hello", token=token, rank=rank, pid=os.getpid(), phase=self._phase, limit=limit)
        threading.Thread(target=self._wait_for_the_end, name="lifeline", daemon=True).start()

    @classmethod
    def from_environment(cls, rank: int, env: Mapping[str, str] = os.environ) -> Lifeline | None:
        """The connection that this process was told to make, None if it was told of none."""
        value = env.get(LIFELINE_VARIABLE)
        if not value:
            return None
        address, _, token = value.rpartition(":")
        return cls(address, token, rank)

    def beat(self, limit_seconds: float | None = None) -> None:
        limit, now = self._limit(limit_seconds), time.monotonic()
        # A longer limit goes at once too: without it the coming silence would count as a hang. So does every beat with
        # a limit of its own, that of a step: of ranks that are silent, the one that was so first is named.
        has_news = self._phase != self._sent_phase or limit > self._sent_limit or limit_seconds is not None
        if has_news or now - self._sent_at >= _BEAT_SECONDS:
            self._sent_phase, self._sent_limit, self._sent_at = self._phase, limit, now
            self._send(type="beat", phase=self._phase, limit=limit, at=now)

    def failed(self, text: str, traceback: str, is_user_error: bool = False, is_symptom: bool = False) -> None:
        """This rank ends by an error.

        is_symptom: the error is one that the end of another rank causes, such as "Connection closed by peer".
        """
        text, traceback = text[:_MAX_TEXT_CHARS], traceback[-_MAX_TEXT_CHARS:]
        error = RankError(time.monotonic(), text, traceback, is_user_error, is_symptom)
        self._send(type="failed", error=vars(error))

    def done(self, status: Literal["finished", "stopped", "requeued"], step: int) -> None:
        """This rank ends as planned, or as asked; from now on it does not mind the watcher's end.

        "requeued": stopped, for SLURM to run the job again.
        """
        self._is_over = True
        self._send(type="done", status=status, step=step)

    def close(self) -> None:
        self._is_over = True
        with contextlib.suppress(OSError):  # the watcher has closed before
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self, **message: Any) -> None:
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._sending:
                self._socket.sendall(line)
        except OSError:
            self._lost()

    def _wait_for_the_end(self) -> None:
        while True:
            try:
                self._socket.recv(64)  # there is one thing that a watcher says, and its silence at the end means it too
            except TimeoutError:
                continue
            except OSError:
                pass
            return self._lost()

    def _lost(self) -> None:
        if not self._is_over:
            self.on_lost()

    def _exit(self) -> None:
        # Not sys.exit: the main thread may be inside a collective that never returns.
        with contextlib.suppress(OSError, ValueError):
            print_line(f"Rank {self.rank} ends: its watcher has ended or says so.", sys.stderr)
        os._exit(LOST_EXIT_CODE)


@dataclass(eq=False)
class _Connection:
    socket: socket.socket
    state: RankState | None = None  # None: it has not said who it is
    unread: bytes = b""
    since: float = field(default_factory=time.monotonic)

    def lines(self) -> Iterator[bytes]:
        while b"\n" in self.unread:
            line, _, self.unread = self.unread.partition(b"\n")
            yield line
