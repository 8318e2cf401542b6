"""Who may see the page: whoever has its token, by an address that is really the server's own."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie

MIN_TOKEN_CHARS = 16
COOKIE = "chorus-page"
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")


def new_token() -> str:
    return secrets.token_urlsafe(24)


def is_usable_token(text: str) -> bool:
    """Whether it is long enough for a token, of characters that an address needs no escapes for."""
    return re.fullmatch(rf"[A-Za-z0-9_-]{{{MIN_TOKEN_CHARS},}}", text) is not None


class Access:
    """The token of a server, and the names that it is called by.

    token: at least MIN_TOKEN_CHARS. names: host names besides "localhost", those of the machine and its addresses.
    """

    def __init__(self, token: str, names: Iterable[str] = ()):
        if len(token) < MIN_TOKEN_CHARS:
            raise ValueError(f"token: at least {MIN_TOKEN_CHARS} characters")
        self._token = token.encode()
        # not the token: whoever reads the browser's store does not get what opens the page elsewhere
        self._cookie = hmac.new(self._token, b"cookie of the page", hashlib.sha256).hexdigest()
        own = socket.gethostname().lower()
        self._names = {"localhost", own, f"{own}.local", *(name.lower() for name in names)}

    def is_token(self, given: str) -> bool:
        """Whether it is the token; takes as long for any."""
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token)

    def has_cookie(self, header: str) -> bool:
        """header: "Cookie" of a request, "" for none."""
        try:
            morsel = SimpleCookie(header).get(COOKIE)
        except CookieError:
            return False
        return morsel is not None and hmac.compare_digest(
            morsel.value.encode("utf-8", "replace"), self._cookie.encode()
        )

    def set_cookie(self) -> str:
        """The header that gives a browser its cookie, until it is closed."""
        return f"{COOKIE}={self._cookie}; Path=/; HttpOnly; SameSite=Strict"

    def is_host(self, header: str, local_address: str) -> bool:
        """Whether "Host" names this server; other names may be those of a foreign page that leads here.

        local_address: the one at which this connection has arrived.
        """
        match = _HOST.fullmatch(header)
        if match is None:
            return False
        name = match["name"].strip("[]").lower()
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name.rstrip(".") in self._names
        return address.is_loopback or address == ipaddress.ip_address(local_address.partition("%")[0])


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches a server at `address`."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
