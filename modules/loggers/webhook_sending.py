"""Sends a message to a webhook: a few tries, in a thread of its own, and never longer than is allowed."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence

from modules.config.errors import UserError
from modules.loggers.webhook_address import Address
from modules.loggers.webhook_messages import Message, encoded, request_of

PAUSES = (2.0, 10.0)  # seconds between the three tries, while a run trains
PAUSES_AT_THE_END = (0.5, 1.5)
TIMEOUT_SECONDS = 10.0  # for a server to answer
TIMEOUT_AT_THE_END = 2.5
AGAIN = {408, 425, 429, *range(500, 600)}  # the answers after which another try may help


class NotSentError(Exception):
    """Why a message was not sent, without the address. is_final: another try would not help."""

    def __init__(self, reason: str, is_final: bool = False):
        super().__init__(reason)
        self.is_final = is_final


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: object, **_options: object) -> None:
        """The token is for the address that a person gave, and a redirected POST becomes a GET."""


_OPENER = urllib.request.build_opener(_NoRedirect)


def post(service: str, address: Address, message: Message, timeout: float = TIMEOUT_SECONDS) -> None:
    """One try. Raises NotSentError."""
    try:
        url, body = request_of(service, address.url, message)
        headers = {"Content-Type": "application/json", "User-Agent": "Chorus"}
        if address.token:
            headers["Authorization"] = f"Bearer {address.token}"
        request = urllib.request.Request(url, encoded(body), headers, method="POST")
        with _OPENER.open(request, timeout=timeout):
            return
    except UserError as error:
        raise NotSentError(str(error).rstrip("."), is_final=True) from None
    except urllib.error.HTTPError as error:
        error.close()
        raise NotSentError(f"HTTP {error.code}", is_final=error.code not in AGAIN) from None
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: of a host or header
        raise NotSentError(_reason(error)) from None


def post_test(service: str, address: Address) -> None:
    """One try with a message that says so. Raises NotSentError."""
    post(service, address, Message("Chorus", "test", "Runs can send messages here.", time=time.time()))


def deliver(
    service: str,
    address: Address,
    message: Message,
    pauses: Sequence[float] = PAUSES,
    timeout: float = TIMEOUT_SECONDS,
    pause: Callable[[float], object] | None = None,
) -> None:
    """Tries it once more after each of `pauses`. pause: waits so many seconds; true: give up. Raises NotSentError."""
    wait = pause or threading.Event().wait
    for seconds in (*pauses, None):
        try:
            return post(service, address, message, timeout)
        except NotSentError as error:
            if error.is_final or seconds is None or wait(seconds):
                raise


def deliver_within(seconds: float, service: str, address: Address, message: Message) -> str:
    """As `deliver`, but returns after `seconds` at the latest. Returns why it was not sent, or ""."""
    reasons = [f"no answer within {seconds:g} s"]

    def work() -> None:
        try:
            deliver(service, address, message, PAUSES_AT_THE_END, TIMEOUT_AT_THE_END)
            reasons.append("")
        except NotSentError as error:
            reasons.append(str(error))

    thread = threading.Thread(target=work, name="webhook", daemon=True)
    thread.start()
    with contextlib.suppress(KeyboardInterrupt):  # another Ctrl-C: don't wait
        thread.join(seconds)
    return reasons[-1]


def _reason(error: Exception) -> str:
    """In words that have no address in them, as the texts of some errors do."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return "no answer"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {cause.verify_message}"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return type(cause).__name__
