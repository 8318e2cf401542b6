"""Messages between two machines that have the same token, or none: signed lines of JSON."""

from __future__ import annotations

import json
import socket
from io import BufferedIOBase
from typing import Any

from modules.session.run_token import is_signed, sign

MAX_MESSAGE_BYTES = 1 << 20  # a node with hundreds of settings sends some 20 KB


class SignedLines:
    """One side of a connection. Its messages are valid in this connection, in this direction and in their order only.

    nonces: a random text from each side, node 0's first. own, other: the names of this side and of the other.
    """

    def __init__(self, connection: socket.socket, token: bytes, nonces: tuple[str, str], own: str, other: str):
        self._connection = connection
        self._key = sign(token, *(nonce.encode() for nonce in nonces)).encode()
        self._own, self._other = own.encode(), other.encode()
        self._said = self._read = 0

    def say(self, message: dict[str, Any]) -> None:
        """Raises OSError."""
        text = json.dumps(message)
        signature = sign(self._key, self._own, str(self._said).encode(), text.encode())
        self._said += 1
        say(self._connection, {"text": text, "signature": signature})

    def read(self, stream: BufferedIOBase) -> dict[str, Any] | None:
        """The next message; {} if none arrives in time, None if the other side does not have the same token."""
        line = read_line(stream)
        if not line:
            return {}
        text, signature = str(line.get("text")), str(line.get("signature"))
        if not is_signed(signature, self._key, self._other, str(self._read).encode(), text.encode("utf-8", "replace")):
            return None
        self._read += 1
        return parsed(text)


def say(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a message as a line of JSON, unsigned. Raises OSError."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def read_line(stream: BufferedIOBase) -> dict[str, Any]:
    """The next line; {} if none arrives in time or it is not one of ours."""
    try:
        return parsed(stream.readline(MAX_MESSAGE_BYTES))
    except OSError:
        return {}


def parsed(text: str | bytes) -> dict[str, Any]:
    """The JSON object; {} if it is none."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}
