"""Node 0's side of the check of several machines: who has come, and whether all are alike."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedIOBase
from typing import Any

from modules.config.errors import UserError
from modules.config.visible_text import visible_line
from modules.machine.ports import next_free_port

MARK = "chorus node check 2"
MAX_MESSAGE_BYTES = 1 << 20  # of a node with hundreds of settings: some 20 KB
POLL_SECONDS = 0.5
HELLO_SECONDS = 1.0  # for a visitor to say who it is: all others wait meanwhile
LINGER_SECONDS = 5.0  # for nodes that come a little later, to be told why there is no run
NAMES_SHOWN = 3
CLOCK_SECONDS = 5.0  # that clocks may differ: one set by NTP is right to fractions of one
CLOCK = "The clock of node"  # what a line of `end` about one that is wrong begins with


@dataclass(frozen=True)
class _Member:
    """seconds_ahead: of its clock before that of node 0; None where it has not said its time."""

    connection: socket.socket
    address: str
    seconds_ahead: float | None


class NodeMeeting:
    """Listens at `port`, all addresses, and takes the nodes that come. own: of node 0, as `describe_node` gives it.

    stopping: whether to wait no longer for nodes that are to hear a refusal.
    refusal: one sentence why there can be no run; empty as long as there can.
    Raises UserError if the port is busy.
    """

    def __init__(
        self, own: dict[str, Any], port: int, is_ipv6: bool = False, stopping: Callable[[], bool] = lambda: False
    ):
        self.refusal = ""
        self._own = own
        self._stopping = stopping
        self._members: dict[int, _Member] = {}
        family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
        try:
            self._server = socket.create_server(("", port), family=family)
        except OSError as error:
            free = next_free_port(port + 1)
            raise UserError(
                f"initial_port {port} is busy here ({error.strerror}): end what uses it, or set another one on every "
                f"machine{f', such as {free}' if free else ''}."
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
        """Nodes that have not come yet."""
        return [rank for rank in range(1, self._own["num_nodes"]) if rank not in self._members]

    @property
    def whom(self) -> str:
        """The missing ones, for people."""
        first, *others = self.missing
        return f"node {first}" + (f" and {len(others)} more" if others else "")

    def all_are_here(self) -> bool:
        """Whether all have come and none has gone since the last poll."""
        self._look(0.0)
        return not self.missing and not self.refusal

    def poll(self) -> None:
        """Takes who comes in the next moment, forgets who has gone, and tells the others whom they wait for."""
        self._look(POLL_SECONDS)
        if self.missing and not self.refusal:
            self._say_all({"waiting": self.whom})

    def refuse(self, reason: str) -> None:
        """Tells all who have come, and for a moment those who still do, that there is no run."""
        self.refusal = reason
        self._say_all({"refusal": reason})
        deadline = time.monotonic() + LINGER_SECONDS
        while self.missing and not self._stopping() and time.monotonic() < deadline:
            if select.select([self._server], [], [], POLL_SECONDS)[0]:
                self._receive()

    def end(self) -> list[str]:
        """Tells all that they are alike; returns what they are told, for people. [] and a refusal if one has gone."""
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
                say(member.connection, {"found": found})
            except OSError:
                self.refuse(f"Node {rank} ({member.address}) has gone just as all were there: start all again.")
                return []
        return found

    def _look(self, seconds: float) -> None:
        """Takes who comes within `seconds`, and forgets who has gone."""
        ranks = {member.connection: rank for rank, member in self._members.items()}
        for connection in select.select([self._server, *ranks], [], [], seconds)[0]:
            if connection is self._server:
                self._receive()
            elif _has_gone(connection):
                self._members.pop(ranks[connection]).connection.close()

    def _receive(self) -> None:
        try:
            connection, address = self._server.accept()
        except (ConnectionError, BlockingIOError):  # it has gone again, before it was taken
            return
        connection.settimeout(HELLO_SECONDS)
        with contextlib.suppress(OSError):
            say(connection, {"mark": MARK})
            hello = read_message(connection.makefile("rb"))
            if hello.get("mark") == MARK:
                told = hello.get("time")
                ahead = told - time.time() if isinstance(told, int | float) else None
                self._admit(_Member(connection, address[0], ahead), hello)
                return
        connection.close()  # somebody who looks for open ports, say

    def _admit(self, member: _Member, hello: dict[str, Any]) -> None:
        rank = hello.get("node_rank")
        reason = self.refusal or self._misfit(member, rank, hello)
        if reason:
            say(member.connection, {"refusal": reason})
        if rank in self.missing:
            self._members[rank] = member  # a refused one too: it has come, and been told
        else:
            member.connection.close()
        if reason and not self.refusal:
            self.refuse(reason)

    def _misfit(self, member: _Member, rank: Any, hello: dict[str, Any]) -> str:
        """Why this node can't be one of the run, or ""."""
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
            with contextlib.suppress(OSError):  # it has gone, which shows at the next poll
                say(member.connection, message)


def say(connection: socket.socket, message: dict[str, Any]) -> None:
    """Raises OSError."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def read_message(stream: BufferedIOBase) -> dict[str, Any]:
    """The next message; {} where there is none in time, or it is something else."""
    try:
        message = json.loads(stream.readline(MAX_MESSAGE_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def plain(value: Any) -> str:
    """What another machine says, safe for a terminal."""
    return visible_line(str(value)[:1000])


def _has_gone(connection: socket.socket) -> bool:
    """Whether a node has closed its connection; it has nothing more to say."""
    try:
        return not connection.recv(1)
    except OSError:
        return True


def _differences(own: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What another node has that node 0 has not."""
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
