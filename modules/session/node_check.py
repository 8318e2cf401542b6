"""Whether the machines of a run reach each other and agree, before a start that would wait for minutes in silence.

Machine 0 listens at the port of the run and tells everyone who asks its versions and a hash of its settings; the
others ask, compare, and say what differs.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
import socket
import threading
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from modules.config.errors import UserError
from modules.config.files import to_values
from modules.config.presets import ROOT

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

PACKAGES = ("torch", "diffusers", "transformers", "peft")
MARK = "chorus node check 1"
MAX_ANSWER_BYTES = 4096
SECONDS = 3.0  # for one attempt

# What may differ between machines: their number, and folders on disks of their own.
_OWN_SETTINGS = ("node_rank", "cache_dir", "workspace_dir")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. is_ok: None where it is only told."""

    text: str
    is_ok: bool | None


def describe_node(config: TrainConfig) -> dict[str, Any]:
    """What has to be the same on all machines. Reads Chorus's own files; for a thread."""
    settings = {name: value for name, value in to_values(config).items() if name not in _OWN_SETTINGS}
    return {
        "mark": MARK,
        "settings": _hash(json.dumps(settings, sort_keys=True).encode()),
        "Chorus": _hash(*(path.read_bytes() for path in sorted((ROOT / "modules").rglob("*.py")))),
        "Python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def compare_nodes(own: dict[str, Any], other: dict[str, Any]) -> list[Finding]:
    """What the other machine has that differs from this one."""
    findings = []
    for name in ("settings", "Chorus", "Python", *PACKAGES):
        same = own[name] == other.get(name)
        if name in ("settings", "Chorus"):
            text = "the same" if same else "not the same as on machine 0: copy them from there"
            findings.append(Finding(f"{'Settings' if name == 'settings' else 'Code of Chorus'}: {text}", same))
        elif not same:
            findings.append(Finding(f"{name}: {own[name]} here, {other.get(name)} on machine 0", False))
    if all(finding.is_ok for finding in findings):
        findings.append(Finding(f"Versions: the same (torch {own['torch']}, Python {own['Python']})", True))
    return findings


def ask_node(address: str, port: int, seconds: float = SECONDS) -> dict[str, Any] | None:
    """What machine 0 says of itself; None where something answers that is no check.

    Raises UserError where the address can't be found, OSError where nothing answers there (yet).
    """
    try:
        with socket.create_connection((address, port), timeout=seconds) as connection:
            connection.settimeout(seconds)
            data = b""
            with contextlib.suppress(TimeoutError):
                while len(data) < MAX_ANSWER_BYTES and (part := connection.recv(MAX_ANSWER_BYTES)):
                    data += part
    except (socket.gaierror, UnicodeError) as error:
        raise UserError(
            f"master_addr {address!r}: there is no such machine ({error}); write its IP address."
        ) from error
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) and answer.get("mark") == MARK else None


class NodeAnswerer:
    """On machine 0: answers the others' checks at `port`, from `start` to `close`. asked: how many have asked."""

    def __init__(self, answer: dict[str, Any], port: int):
        self._answer = json.dumps(answer).encode()
        self._port = port
        self._socket: socket.socket | None = None
        self.asked: list[str] = []

    def start(self) -> None:
        """Raises UserError if the port is busy."""
        try:
            self._socket = socket.create_server(("", self._port))
        except OSError as error:
            raise UserError(f"initial_port {self._port} is busy here ({error.strerror}): set another one.") from error
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Frees the port; nothing if it was not taken."""
        if self._socket is None:
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes `accept`, where closing alone does not
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, address = self._socket.accept()
            except OSError:  # it was closed
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(SECONDS)
                connection.sendall(self._answer)
                self.asked.append(address[0])


def check_own_address(address: str) -> Finding:
    """Whether `master_addr` leads to this machine, for machine 0."""
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        return Finding(f"Address {address}: no such machine ({error})", False)
    for family, kind, protocol, _, place in found:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind((place[0], 0, *place[2:]))
            return Finding(f"Address {address}: this machine's", True)
    return Finding(f"Address {address}: not this machine's, which is number 0", False)


def next_free_port(port: int, attempts: int = 100) -> int | None:
    """The first port from `port` on that nothing on this machine uses; None if there is none near."""
    for candidate in range(port, min(port + attempts, 65536)):
        with contextlib.suppress(OSError), socket.create_server(("", candidate)):
            return candidate
    return None


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
