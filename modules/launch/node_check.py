"""Check that the machines of a run can reach each other and match, before a start that would wait silently for minutes.

Every node calls `check_nodes`: node 0 listens on the run's port, the others connect. Messages are lines of JSON, signed
with the token in the environment, if any. Node 0 greets each connection; the node answers with its number and all that
has to match; node 0 then reports about twice a second which nodes are missing and finally sends the verdict, which is
the same for all nodes.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from io import BufferedIOBase
from typing import TYPE_CHECKING, Any

from modules.config.errors import UserError
from modules.config.installation import PACKAGE_FOLDER
from modules.config.shared_settings import shared_values
from modules.launch.NodeMeeting import FOLLOWER, LEADER, LINGER_SECONDS, MARK, NodeMeeting, plain
from modules.launch.SignedLines import SignedLines, read_line, say
from modules.machine.backend import choose_backend
from modules.machine.devices import list_gpus
from modules.session.run_token import TOKEN_VARIABLE, token_of

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

PACKAGES = ("torch", "diffusers", "transformers", "peft")
WAIT_SECONDS = 600.0  # for all nodes, which a user may start one after the other
UNREACHABLE_SECONDS = 12.0  # for an address that does not respond at all
REFUSING_SECONDS = 2 * LINGER_SECONDS  # for a node that can't train to reach node 0 and report why
PATIENCE_SECONDS = 25.0  # before refused connections are reported: node 0 may still be starting
CONNECT_SECONDS = 3.0  # for one attempt
RETRY_SECONDS = 0.5
SILENT_SECONDS = 10.0  # without a message from node 0 before it counts as gone
TELL_SECONDS = 4.0  # between two progress messages

Tell = Callable[[str], None]


@dataclass(frozen=True)
class MeetingPlace:
    """Where node 0 listens."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def check_nodes(
    config: TrainConfig,
    tell: Tell,
    stopping: Callable[[], bool] = lambda: False,
    wait_seconds: float = WAIT_SECONDS,
    resume: bool | None = None,
    ranks: int | None = None,
) -> list[str]:
    """Wait for all nodes of `config` and compare them. Returns the findings as lines; [] if it was stopped.

    tell: called every few seconds with the nodes waited for. stopping: whether to stop waiting. resume, ranks: of the
    start that follows, as in `describe_node`.
    Raises UserError, one sentence, if a node can't be reached, can't train, does not match node 0, has the same number
    as another one, or does not connect within `wait_seconds`.
    """
    if config.num_nodes == 1:
        return ["There is one node, and nothing to compare"]
    place = MeetingPlace(config.master_addr, int(config.initial_port))
    own = describe_node(config, resume, ranks)
    waiting = _Waiting(tell, stopping, wait_seconds)
    if config.node_rank == 0:
        return _lead(own, place, waiting)
    with _reach(place, own, waiting) as connection:
        return [] if connection is None else _follow(connection, own, place, waiting)


@contextlib.contextmanager
def refused_together(config: TrainConfig, tell: Tell) -> Iterator[None]:
    """Report a UserError raised in the block to the other nodes of `config`, which would otherwise wait for this one.

    In that case it takes a few seconds, in which the others may connect. tell: as in `check_nodes`.
    """
    try:
        yield
    except UserError as error:
        if config.enable_multi_gpu and config.num_nodes > 1:
            # their answer, their absence, a network error or Ctrl-C: this node's own error is what counts
            with contextlib.suppress(UserError, OSError, KeyboardInterrupt):
                _tell_refusal(config, str(error), tell)
        raise


def describe_node(config: TrainConfig, resume: bool | None = None, ranks: int | None = None) -> dict[str, Any]:
    """Everything that has to match between machines, and this node's number. Reads Chorus's files and queries the
    driver.

    resume: whether the start resumes from a backup. ranks: their number on this node, if all nodes need the same. None:
    unknown and not compared.
    """
    return {
        "mark": MARK,
        "node_rank": config.node_rank,
        "num_nodes": config.num_nodes,
        "settings": {name: _hash(repr(value).encode()) for name, value in _leaves(shared_values(config))},
        "Chorus": _hash(*(path.read_bytes() for path in sorted(PACKAGE_FOLDER.rglob("*.py")))),
        "Python": ".".join(platform.python_version_tuple()[:2]),
        **{name: _version(name) for name in PACKAGES},
        "--resume": None if resume is None else "given" if resume else "not given",
        "world_size": ranks,
        "backend": choose_backend(config.distributed_backend, has_gpu=bool(list_gpus()))[0],
    }


class _Waiting:
    """How long this node has waited, with progress messages."""

    def __init__(self, tell: Tell, stopping: Callable[[], bool], limit_seconds: float):
        self.stopping = stopping
        self.limit_seconds = limit_seconds
        self._tell = tell
        self._started = time.monotonic()
        self._due = 0.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def tell(self, whom: str) -> None:
        """Print a message every few seconds. whom: such as "node 1"."""
        if self.seconds >= self._due:
            self._tell(f"waiting for {whom} ({self.seconds:.0f} s)")
            self._due = (self.seconds // TELL_SECONDS + 1) * TELL_SECONDS


# --- node 0 -----------------------------------------------------------------------------------------------------------


def _lead(own: dict[str, Any], place: MeetingPlace, waiting: _Waiting) -> list[str]:
    with NodeMeeting(own, place.port, ":" in place.address, waiting.stopping) as meeting:
        if not is_own_address(place.address):
            _refuse_second_leader(own, place)
        while not meeting.refusal:
            if waiting.stopping():
                return []
            if not meeting.missing:
                if meeting.all_are_here() and (found := meeting.end()):
                    return found
            elif waiting.seconds > waiting.limit_seconds:
                meeting.refuse(
                    f"{meeting.whom.capitalize()} did not come within {waiting.limit_seconds:g} s: start its command, "
                    f"and see that it reaches master_addr and initial_port, {place}."
                )
            else:
                waiting.tell(meeting.whom)
                meeting.poll()
        raise UserError(meeting.refusal)


def _refuse_second_leader(own: dict[str, Any], place: MeetingPlace) -> None:
    """Refuse to lead: another machine has the address. If that one is already node 0, tell both."""
    with contextlib.suppress(OSError), socket.create_connection((place.address, place.port), CONNECT_SECONDS) as other:
        stream = other.makefile("rb")
        if lines := _greeted(other, stream):
            lines.say(own)
            if refusal := (lines.read(stream) or {}).get("refusal"):
                raise UserError(plain(refusal))
    raise UserError.at(
        "master_addr",
        f"{place.address!r} is not an address of this machine, which is node 0: write one that it has and "
        "the others reach, or give it another node_rank.",
    )


def is_own_address(address: str) -> bool:
    """Whether `address` is one of this machine. Raises UserError if it can't be resolved."""
    for family, kind, protocol, _, found in _look_up(address):
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind((found[0], 0, *found[2:]))
            return True
    return False


def _look_up(address: str) -> list[tuple]:
    try:
        return socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise UserError.at(
            "master_addr", f"{address!r}: there is no such machine ({error}); write its IP address."
        ) from error


# --- the others -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _reach(place: MeetingPlace, own: dict[str, Any], waiting: _Waiting) -> Iterator[socket.socket | None]:
    """Connect to node 0 as soon as it listens; None if the waiting was stopped. Raises UserError."""
    is_own = is_own_address(place.address)
    silent_since = None
    while not waiting.stopping():
        try:
            connection = socket.create_connection((place.address, place.port), CONNECT_SECONDS)
        except ConnectionRefusedError:  # the machine is up but not listening yet
            reason, is_there = "nothing listens there", not is_own
        except OSError as error:
            reason, is_there = error.strerror or str(error), False
        else:
            with connection:
                yield connection
            return
        if is_there:
            silent_since = None
        elif silent_since is None:
            silent_since = waiting.seconds
        elif waiting.seconds - silent_since > UNREACHABLE_SECONDS:
            if is_own:
                _tell_that_no_node_leads(own, place, waiting.stopping)
            raise UserError(_unreachable(place, own["node_rank"], reason, is_own))
        if waiting.seconds > waiting.limit_seconds:
            raise UserError(
                f"Node 0 did not come to {place} within {waiting.limit_seconds:g} s: start its command, or correct "
                "master_addr and initial_port."
            )
        refuses = is_there and waiting.seconds > PATIENCE_SECONDS
        waiting.tell(f"node 0; something at {place.address} refuses" if refuses else "node 0")
        time.sleep(RETRY_SECONDS)
    yield None


def _tell_that_no_node_leads(own: dict[str, Any], place: MeetingPlace, stopping: Callable[[], bool]) -> None:
    """Tell nodes that connect to this machine that it is not node 0, as when two were given the same command."""
    # UserError: the port is busy, so they reach something else. OSError: the caller's reason counts more
    is_ipv6 = ":" in place.address
    with contextlib.suppress(UserError, OSError), NodeMeeting(own, place.port, is_ipv6, stopping) as meeting:
        meeting.refuse(
            f"The machine that has master_addr, {place.address}, was started as node {own['node_rank']}: give it "
            "node_rank 0, or write the address of node 0."
        )


def _unreachable(place: MeetingPlace, node_rank: int, reason: str, is_own: bool) -> str:
    if is_own:
        return (
            f"master_addr {place.address!r} is this machine itself, which is node {node_rank}, and {reason}: write the "
            "address of node 0."
        )
    return (
        f"Node 0 can't be reached at {place} from here ({reason}): correct master_addr, or see that the machine is on "
        "and no firewall is in the way."
    )


def _tell_refusal(config: TrainConfig, reason: str, tell: Tell) -> None:
    """Send this node's refusal to node 0. Raises UserError with its answer, or if it can't be reached."""
    place = MeetingPlace(config.master_addr, int(config.initial_port))
    own = {**describe_node(config), "refusal": reason}
    if config.node_rank == 0:
        with NodeMeeting(own, place.port, ":" in place.address) as meeting:
            tell("telling the other nodes that there is no run")
            meeting.refuse(f"Node 0 can't train: {reason}")
        return
    waiting = _Waiting(tell, lambda: False, REFUSING_SECONDS)
    with _reach(place, own, waiting) as connection:
        assert connection is not None  # nothing stops this waiting
        _follow(connection, own, place, waiting)


def _follow(connection: socket.socket, own: dict[str, Any], place: MeetingPlace, waiting: _Waiting) -> list[str]:
    connection.settimeout(SILENT_SECONDS / 2)
    stream = connection.makefile("rb")
    lines = _greeted(connection, stream)
    if lines is None:
        raise UserError(
            f"Something other than node 0's check answers at {place}: end it there, such as an earlier run, or set "
            "another initial_port on all nodes."
        )
    connection.settimeout(SILENT_SECONDS)
    with contextlib.suppress(OSError):  # messages sent before node 0 disconnected are still read
        lines.say({**own, "time": time.time()})
    while not waiting.stopping():
        message = lines.read(stream)
        if message is None:
            raise UserError(
                f"Node 0 at {place} has another {TOKEN_VARIABLE} than this node, or one of them has none: run the "
                "commands as they are written, and copy the token file from node 0 to this machine."
            )
        if "refusal" in message:
            raise UserError(plain(message["refusal"]))
        if "found" in message:
            return [plain(line) for line in message["found"]]
        if "waiting" not in message:
            raise UserError(
                f"Node 0 at {place} disconnected while this node waited: see there why, then start both again."
            )
        waiting.tell(plain(message["waiting"]))
    return []


def _greeted(connection: socket.socket, stream: BufferedIOBase) -> SignedLines | None:
    """The lines to talk to node 0 by; None if something else answers, or nothing."""
    greeting = read_line(stream)
    if greeting.get("mark") != MARK:
        return None
    nonce = secrets.token_hex(16)
    with contextlib.suppress(OSError):  # what node 0 sent before it disconnected is still read
        say(connection, {"mark": MARK, "nonce": nonce})
    return SignedLines(connection, token_of(), (str(greeting.get("nonce")), nonce), FOLLOWER, LEADER)


# --- helpers ----------------------------------------------------------------------------------------------------------


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of every setting."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not isinstance(value, dict | list) or not value:
        yield name, value
    for key, inner in items:
        yield from _leaves(inner, f"{name}.{key}" if name else str(key))


def _hash(*parts: bytes) -> str:
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(blake2b(part).digest())
    return digest.hexdigest()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
