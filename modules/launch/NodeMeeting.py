"""Node 0's side of the check of several machines: which nodes have connected, and whether all of them match."""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from modules.config.errors import UserError
from modules.config.visible_text import visible_line
from modules.launch.SignedLines import SignedLines, read_line, say
from modules.machine.ports import next_free_port
from modules.session.run_token import TOKEN_VARIABLE, token_of

MARK = "chorus node check 3"
LEADER, FOLLOWER = "node 0", "another node"
POLL_SECONDS = 0.5
HELLO_SECONDS = 1.0  # for a new connection to identify itself: all others wait meanwhile
LINGER_SECONDS = 5.0  # for nodes that connect a little later, so that they are told why the run was refused
NAMES_SHOWN = 3
CLOCK_SECONDS = 5.0  # by which clocks may differ; those set by NTP differ by fractions of a second
CLOCK = "The clock of node"  # how `end` begins a line about a clock that is off


@dataclass(frozen=True)
class _Member:
    """seconds_ahead: of its clock, relative to node 0's; None if it has not sent its time."""

    connection: socket.socket
    lines: SignedLines
    address: str
    seconds_ahead: float | None


class NodeMeeting:
    """Listens on `port` at all addresses and accepts the other nodes, which have the same token or, like it, none.

    own: node 0 as `describe_node` describes it.

    stopping: whether to stop waiting for nodes that have yet to be told of a refusal.
    refusal: one sentence on why the run can't start; empty as long as it can.
    Raises UserError if the port is busy.
    """

    def __init__(
        self, own: dict[str, Any], port: int, is_ipv6: bool = False, stopping: Callable[[], bool] = lambda: False
    ):
        self.refusal = ""
        self._own = own
        self._token = token_of()
        self._stranger = ""  # the address of the last machine that has another token
        self._stopping = stopping
        self._members: dict[int, _Member] = {}
        family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
        try:
            self._server = socket.create_server(("", port), family=family)
        except OSError as error:
            free = next_free_port(port + 1)
            raise UserError.at(
                "initial_port",
                f"{port} is busy here ({error.strerror}): end what uses it, or set another one on every "
                f"machine{f', such as {free}' if free else ''}.",
            ) from error
        self._server.setblocking(False)

    def __enter__(self) -> NodeMeeting:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for member in self._members.values():
            member.connection.close()
        self._server.close()

    @property
    def missing(self) -> list[int]:
        """The nodes that have not connected yet."""
        return [rank for rank in range(1, self._own["num_nodes"]) if rank not in self._members]

    @property
    def whom(self) -> str:
        """The missing nodes, in words."""
        first, *others = self.missing
        more = f" and {len(others)} more" if others else ""
        stranger = f"; the machine at {self._stranger} has another {TOKEN_VARIABLE}, or none" if self._stranger else ""
        return f"node {first}{more}{stranger}"

    def all_are_here(self) -> bool:
        """Whether all nodes are connected and none has disconnected since the last poll."""
        self._accept(0.0)
        return not self.missing and not self.refusal

    def poll(self) -> None:
        """Accept new nodes for a moment, drop those that have disconnected, and tell the others whom they wait for."""
        self._accept(POLL_SECONDS)
        if self.missing and not self.refusal:
            self._say_all({"waiting": self.whom})

    def refuse(self, reason: str) -> None:
        """Tell all connected nodes, and those that connect shortly after, that the run is refused."""
        self.refusal = reason
        self._say_all({"refusal": reason})
        deadline = time.monotonic() + LINGER_SECONDS
        while self.missing and not self._stopping() and time.monotonic() < deadline:
            if select.select([self._server], [], [], POLL_SECONDS)[0]:
                self._receive()

    def end(self) -> list[str]:
        """Tell all nodes that they match. Returns the lines they are told; [] and a refusal if one has disconnected."""
        own, nodes = self._own, self._own["num_nodes"]
        members = sorted(self._members.items())
        found = [f"Node {rank}: {member.address}" for rank, member in members]
        for rank, member in members:
            ahead = member.seconds_ahead or 0.0
            if abs(ahead) > CLOCK_SECONDS:
                side = "ahead of" if ahead > 0 else "behind"
                found.append(f"{CLOCK} {rank} is {abs(ahead):.0f} s {side} that of node 0: have both set by NTP")
        found.append(f"{nodes} nodes, alike: settings, Chorus, Python {own['Python']}, torch {own['torch']}")
        for rank, member in members:
            try:
                member.lines.say({"found": found})
            except OSError:
                self.refuse(f"Node {rank} ({member.address}) disconnected just when all were there: start all again.")
                return []
        return found

    def _accept(self, seconds: float) -> None:
        """Accept nodes that connect within `seconds`, and drop those that have disconnected."""
        ranks = {member.connection: rank for rank, member in self._members.items()}
        for connection in select.select([self._server, *ranks], [], [], seconds)[0]:
            if connection is self._server:
                self._receive()
            elif _has_gone(connection):
                self._members.pop(ranks[connection]).connection.close()

    def _receive(self) -> None:
        try:
            connection, address = self._server.accept()
        except (ConnectionError, BlockingIOError):  # it disconnected before it was accepted
            return
        connection.settimeout(HELLO_SECONDS)
        with contextlib.suppress(OSError):
            nonce = secrets.token_hex(16)
            say(connection, {"mark": MARK, "nonce": nonce})
            stream = connection.makefile("rb")
            greeting = read_line(stream)
            if greeting.get("mark") == MARK:
                nonces = (nonce, str(greeting.get("nonce")))
                lines = SignedLines(connection, self._token, nonces, LEADER, FOLLOWER)
                hello = lines.read(stream)
                if hello:
                    told = hello.get("time")
                    ahead = told - time.time() if isinstance(told, int | float) else None
                    self._admit(_Member(connection, lines, address[0], ahead), hello)
                    return
                if hello is None:
                    self._stranger = address[0]
                    lines.say({"refusal": "another token"})  # which it can't read, and so knows
        connection.close()  # not a node, perhaps a port scanner

    def _admit(self, member: _Member, hello: dict[str, Any]) -> None:
        rank = hello.get("node_rank")
        reason = self.refusal or self._mismatch(member, rank, hello)
        if reason:
            member.lines.say({"refusal": reason})
        if rank in self.missing:
            self._members[rank] = member  # even a refused one: it has connected and been told
        else:
            member.connection.close()
        if reason and not self.refusal:
            self.refuse(reason)

    def _mismatch(self, member: _Member, rank: Any, hello: dict[str, Any]) -> str:
        """Why this node can't take part in the run, or ""."""
        num_nodes = self._own["num_nodes"]
        if hello.get("num_nodes") != num_nodes:
            return (
                f"The machine at {member.address} was started for {plain(hello.get('num_nodes'))} nodes and node 0 for "
                f"{num_nodes}: start all with the same number of nodes."
            )
        if not isinstance(rank, int) or not 0 <= rank < num_nodes:
            return f"node_rank {plain(rank)} of the machine at {member.address}: use 1 to {num_nodes - 1} there."
        if rank == 0 or rank in self._members:
            other = self._members[rank].address if rank else "the machine that has master_addr"
            return (
                f"node_rank {rank} was given twice, to {other} and to {member.address}: give every machine its own, "
                f"0 to {num_nodes - 1}."
            )
        if "refusal" in hello:
            return f"Node {rank} ({member.address}) can't train: {plain(hello['refusal'])}"
        differences = _differences(self._own, hello)
        if differences:
            return (
                f"Node {rank} ({member.address}) has {', '.join(differences)}: bring it to what node 0 has, and start "
                "all again."
            )
        return ""

    def _say_all(self, message: dict[str, Any]) -> None:
        for member in self._members.values():
            with contextlib.suppress(OSError):  # disconnected, which the next poll notices
                member.lines.say(message)


def plain(value: Any) -> str:
    """Text from another machine, made safe for a terminal."""
    return visible_line(str(value)[:1000])


def _has_gone(connection: socket.socket) -> bool:
    """Whether a node has closed its connection. Nodes send nothing after their first message."""
    try:
        return not connection.recv(1)
    except OSError:
        return True


def _differences(own: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """In what another node differs from node 0, in words."""
    found = []
    theirs = other.get("settings")
    theirs = theirs if isinstance(theirs, dict) else {}
    names = [name for name in sorted({*own["settings"], *theirs}) if own["settings"].get(name) != theirs.get(name)]
    if names:
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        found.append(f"other settings ({', '.join(map(plain, names[:NAMES_SHOWN]))}{more})")
    if own["Chorus"] != other.get("Chorus"):
        found.append("another version of Chorus")
    for name in sorted(own.keys() - {"mark", "node_rank", "num_nodes", "settings", "Chorus"}):
        is_known = own[name] is not None and other.get(name) is not None
        if is_known and own[name] != other[name]:
            found.append(f"{name} {plain(other.get(name))} instead of {own[name]}")
    return found
