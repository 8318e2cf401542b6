"""A TCP connection on loopback between each rank and the process that watches the ranks of its node.

The rank reports what it is doing and how it ended. To either side, the end of the connection means that the other
process is gone, however it ended. Messages are lines of JSON; the first message of a rank carries a token.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import math
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
LOST_EXIT_CODE = 76  # of a rank whose watcher is gone or ended it; 75 is taken: it requeues a job of SLURM
UNGUARDED_EXIT_CODE = 77  # of a rank that, while it imports the program, would launch ranks itself

_BEAT_SECONDS = 0.2  # between heartbeats
_SEND_SECONDS = 5.0  # a watcher that has not emptied a full buffer for this long counts as gone
_HELLO_SECONDS = 10.0
_MAX_HELLO_BYTES = 4096  # buffered for a client that has not authenticated itself
_MAX_LINE_BYTES = 1 << 20
_MAX_TEXT_CHARS = 16_000


@dataclass(frozen=True)
class RankError:
    """What a rank reported when it failed. time: by `time.monotonic`, which all processes of a machine share."""

    time: float
    text: str
    traceback: str
    is_user_error: bool
    is_symptom: bool


@dataclass
class RankState:
    """What is known about a rank from its connection. All times are by `time.monotonic`.

    last_beat: when the last heartbeat was sent. limit_seconds: how long the rank may be silent. step_beats: number of
    heartbeats within steps, which all ranks send at the same places. has_begun: whether it has sent a heartbeat at all;
    until then it imports libraries. lost_at: when the connection ended although the
    rank had reported neither success nor failure.
    """

    rank: int
    pid: int
    connected_at: float
    last_beat: float
    phase: Phase
    limit_seconds: float
    step_beats: int = 0
    has_begun: bool = False
    is_connected: bool = True
    error: RankError | None = None
    done: Literal["finished", "stopped", "requeued"] | None = None
    done_at: float | None = None
    step: int | None = None
    lost_at: float | None = None


class LifelineServer:
    """The watcher's side: call `poll` often, then inspect `ranks`. Not thread-safe.

    token: by which it knows its ranks; None makes one. port: where it listens on loopback.
    """

    def __init__(self, token: str | None = None) -> None:
        self.ranks: dict[int, RankState] = {}
        self.token = token or secrets.token_hex(16)
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    def variables(self) -> dict[str, str]:
        """The environment variables that ranks need in order to connect."""
        return {LIFELINE_VARIABLE: f"{self.address}:{self.token}"}

    def poll(self, timeout_seconds: float) -> None:
        """Process incoming messages, waiting up to `timeout_seconds` for the first one."""
        for key, _ in self._selector.select(timeout_seconds):
            if key.data is None:
                self._accept()
            else:
                self._receive(key.data)
        self._drop_silent_strangers()

    def end_all(self) -> None:
        """Tell every rank to end at once."""
        for connection in self._connections():
            with contextlib.suppress(OSError):  # already gone, or not reading: signals take care of it
                connection.socket.send(b'{"type": "end"}\n')

    def close(self) -> None:
        """Close all connections, which ends the ranks that are not done."""
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
        except OSError:  # the client has already disconnected
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
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # not one of our messages
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
            # by the rank's own clock: all beats read in one poll would otherwise get the same time
            state.last_beat = float(message["at"])
            state.phase, state.limit_seconds = message["phase"], float(message["limit"])
            state.step_beats = int(message["step_beats"])
            state.has_begun = True
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
    """A rank's side. Ends this process at once if the watcher is gone or asks for it, even inside a collective.

    Thread-safe, but not to be used in signal handlers.
    """

    def __init__(self, address: str, token: str, rank: int):
        """Connect and identify this rank. Raises OSError if nobody is listening.

        address: "host:port".
        """
        super().__init__()
        self.rank = rank
        self.on_lost: Callable[[], None] = self._exit
        host, _, port = address.rpartition(":")
        self._sending = threading.Lock()
        self._is_over = False
        limit = self._limit(None)
        self._sent_phase, self._sent_limit = self._phase, limit
        self._sent_at = -math.inf  # the first beat is sent at once, as it says that the rank has begun
        self._step_beats = 0
        self._socket = socket.create_connection((host, int(port)), timeout=_SEND_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._send(type="hello", token=token, rank=rank, pid=os.getpid(), phase=self._phase, limit=limit)
        threading.Thread(target=self._wait_for_the_end, name="lifeline", daemon=True).start()

    @classmethod
    def from_environment(cls, rank: int, env: Mapping[str, str] = os.environ) -> Lifeline | None:
        """The connection that the environment asks this process to make; None if it asks for none."""
        value = env.get(LIFELINE_VARIABLE)
        if not value:
            return None
        address, _, token = value.rpartition(":")
        return cls(address, token, rank)

    def beat(self, limit_seconds: float | None = None) -> None:
        limit, now = self._limit(limit_seconds), time.monotonic()
        is_of_step = limit_seconds is not None
        self._step_beats += is_of_step
        # A longer limit is sent at once: otherwise the silence that follows would count as a hang. So is every beat
        # within a step, so that the rank that the others wait for can be named.
        has_news = self._phase != self._sent_phase or limit > self._sent_limit or is_of_step
        if has_news or now - self._sent_at >= _BEAT_SECONDS:
            self._sent_phase, self._sent_limit, self._sent_at = self._phase, limit, now
            self._send(type="beat", phase=self._phase, limit=limit, at=now, step_beats=self._step_beats)

    def failed(self, text: str, traceback: str, is_user_error: bool = False, is_symptom: bool = False) -> None:
        """Report that this rank ends with an error.

        is_symptom: the error is a consequence of another rank's end, such as "Connection closed by peer".
        """
        text, traceback = text[:_MAX_TEXT_CHARS], traceback[-_MAX_TEXT_CHARS:]
        error = RankError(time.monotonic(), text, traceback, is_user_error, is_symptom)
        self._send(type="failed", error=vars(error))

    def done(self, status: Literal["finished", "stopped", "requeued"], step: int) -> None:
        """Report that this rank ends as planned or as requested; from now on it ignores the watcher's end.

        "requeued": stopped so that SLURM runs the job again.
        """
        self._is_over = True
        self._send(type="done", status=status, step=step)

    def close(self) -> None:
        self._is_over = True
        with contextlib.suppress(OSError):  # already closed by the watcher
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
                self._socket.recv(64)  # the watcher sends a single message; EOF counts as that message
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
