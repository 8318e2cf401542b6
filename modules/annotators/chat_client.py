"""Asks a server that speaks OpenAI's chat form over HTTP, as Ollama, LM Studio, vLLM and llama.cpp do.

Images and the key go to the address that the user gave, and nowhere else: redirects are refused, and the proxies of the
environment are not used. The key is never part of a message.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from modules.config.errors import UserError
from modules.config.visible_text import visible_line

KEY_VARIABLE = "CHORUS_CAPTION_KEY"  # of the environment, with the server's key
TRIES = 4
FIRST_WAIT_SECONDS = 1.0  # doubled after each try
MAX_WAIT_SECONDS = 30.0
CONNECT_SECONDS = 10.0
MAX_ANSWER_BYTES = 16 << 20
MAX_SHOWN = 200  # letters of a server's own message
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})  # worth asking again
_HIDDEN = "<key>"


class RequestRefused(Exception):
    """The server refuses this request, though others may succeed. `str()` is a clause without a full stop."""


@dataclass(frozen=True)
class ChatServer:
    """Where to ask. address: as from `server_address`. key: "" for servers without. seconds: for one answer.

    is_canceled: asked while it waits before it tries again.
    """

    address: str
    key: str = field(default="", repr=False)
    seconds: float = 120.0
    is_canceled: Callable[[], bool] = field(default=lambda: False, repr=False)

    def models(self) -> list[str]:
        """The names of the models that the server offers; [] if it does not say. Raises UserError."""
        try:
            answer = self._ask("GET", "/models", None)
        except RequestRefused:
            return []
        found = answer.get("data")
        names = [one.get("id") for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
        return [name for name in names if isinstance(name, str)]

    def complete(self, request: Mapping[str, Any]) -> str:
        """The text that the server answers to a request of the chat form.

        Raises RequestRefused if it refuses this request, and UserError if asking it again has no prospect.
        """
        answer = self._ask("POST", "/chat/completions", json.dumps(request).encode())
        try:
            content = answer["choices"][0]["message"]["content"]
        except (LookupError, TypeError):
            raise RequestRefused("the server's answer has no text") from None
        return content if isinstance(content, str) else ""

    def _ask(self, method: str, path: str, body: bytes | None) -> Mapping[str, Any]:
        problem, asked_seconds = "", 0.0
        for number in range(TRIES):
            if number:
                self._wait(min(MAX_WAIT_SECONDS, max(asked_seconds, FIRST_WAIT_SECONDS * 2 ** (number - 1))))
            if self.is_canceled():
                raise RequestRefused("canceled")
            asked_seconds = 0.0
            try:
                status, headers, content = self._request(method, path, body)
            except TimeoutError:
                problem = f"it does not answer within {self.seconds:.0f} s"
            except (OSError, http.client.HTTPException) as error:
                problem = self._hide(getattr(error, "strerror", None) or str(error) or type(error).__name__)
            else:
                if status not in _BUSY:
                    return self._answer(status, content)
                problem = f"it answers {status}{self._said(content)}"
                asked_seconds = _seconds(headers.get("Retry-After"))
        raise UserError(
            f"--server {self.address}: {problem}; check that the server is running and has this address, and start "
            "again: what is written stays."
        )

    def _request(self, method: str, path: str, body: bytes | None) -> tuple[int, http.client.HTTPMessage, bytes]:
        url = urlsplit(self.address)
        if url.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                url.netloc, timeout=CONNECT_SECONDS, context=ssl.create_default_context()
            )
        else:
            connection = http.client.HTTPConnection(url.netloc, timeout=CONNECT_SECONDS)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        try:
            connection.connect()
            connection.sock.settimeout(self.seconds)
            connection.request(method, url.path + path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read(MAX_ANSWER_BYTES)
        finally:
            connection.close()

    def _answer(self, status: int, content: bytes) -> Mapping[str, Any]:
        if status in (401, 403):
            raise UserError(
                f"--server {self.address}: it refuses the key{self._said(content)}; set it by --key-from or --ask-key."
            )
        if 300 <= status < 400:
            raise UserError(
                f"--server {self.address}: it redirects to another address, where nothing is sent; give that address "
                "if you trust it."
            )
        if status == 404:
            raise UserError(
                f"--server {self.address}: it knows no such model or address{self._said(content)}; check --model and "
                "--server, which often ends in /v1."
            )
        if status != 200:
            raise RequestRefused(f"the server answers {status}{self._said(content)}")
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            raise RequestRefused("the server's answer is no JSON") from None
        if not isinstance(answer, dict):
            raise RequestRefused("the server's answer is no JSON object")
        return answer

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.is_canceled():
            time.sleep(min(0.1, seconds))

    def _said(self, content: bytes) -> str:
        """The message in an error answer, as a part of a sentence; "" if there is none."""
        try:
            error = json.loads(content).get("error")
        except (ValueError, AttributeError, RecursionError):
            return ""
        text = error.get("message") if isinstance(error, Mapping) else error
        return f" ({self._hide(text)[:MAX_SHOWN].rstrip('.')})" if isinstance(text, str) and text else ""

    def _hide(self, text: str) -> str:
        """One line, without the key: servers quote what they were sent."""
        line = visible_line(" ".join(text.split()))
        return line.replace(self.key, _HIDDEN) if self.key else line


def server_address(text: str) -> str:
    """The address of a server's API, without a slash at its end; "/v1" is added to one without a path.

    Raises UserError if it can't be one, or names a user and a password.
    """
    try:
        url = urlsplit(text.strip().rstrip("/"))
        is_valid = url.scheme in ("http", "https") and bool(url.hostname) and not (url.query or url.fragment)
        _ = url.port  # raises ValueError if it is none
    except ValueError:
        is_valid = False
    if not is_valid:
        raise UserError(f"--server {visible_line(text)!r}: is no address; write one such as http://localhost:11434/v1.")
    if "@" in url.netloc:
        raise UserError("--server: keep passwords out of the address; set a key by --key-from or --ask-key.")
    return f"{url.scheme}://{url.netloc}{url.path or '/v1'}"


def is_on_this_machine(address: str) -> bool:
    """Whether what is sent to an address stays on this machine."""
    host = urlsplit(address).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def sent_where(address: str, with_key: bool) -> str:
    """What a person has to know before images are sent."""
    if is_on_this_machine(address):
        return f"The images are sent to {address}, on this machine, and nowhere else."
    plain = urlsplit(address).scheme == "http"
    secret = "the key and the images" if with_key else "the images"
    unencrypted = f" Without https, others on the network can read {secret}." if plain else ""
    return f"The images are sent to {address}, another machine, and nowhere else.{unencrypted}"


def _seconds(text: str | None) -> float:
    """Of a Retry-After header; 0 for a date, or none."""
    return float(text) if text is not None and text.isascii() and text.isdigit() else 0.0
