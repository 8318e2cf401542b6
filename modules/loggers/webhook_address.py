"""Where the address of the webhook is kept: not among the settings, because whoever has it can write to the chat."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from modules.config.atomic_file import remove, rename, temporary_beside
from modules.config.busy_files import retry_busy
from modules.config.errors import UserError
from modules.config.installation import command_name, webhook_file
from modules.loggers.webhook_messages import checked_url
from modules.session.run_token import write_secret

URL_VARIABLE = "CHORUS_WEBHOOK_URL"
TOKEN_VARIABLE = "CHORUS_WEBHOOK_TOKEN"


@dataclass(frozen=True)
class Address:
    """token: sent as a bearer token, as protected topics of ntfy need; "" for none. Neither is ever shown."""

    url: str = field(repr=False)
    token: str = field(default="", repr=False)


def read_address(env: Mapping[str, str] = os.environ, path: Path | None = None) -> Address | None:
    """That of the environment, else the one that was saved; None if there is neither."""
    if is_from_environment(env):
        return Address(env[URL_VARIABLE].strip(), env.get(TOKEN_VARIABLE, "").strip())
    try:
        values = json.loads((path or webhook_file()).read_bytes())
        return Address(str(values["url"]), str(values.get("token", ""))) if values["url"] else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # missing or damaged: it is asked for again
        return None


def is_from_environment(env: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment has an address, which counts before the one that is saved."""
    return bool(env.get(URL_VARIABLE, "").strip())


def save_address(address: Address, path: Path | None = None) -> None:
    """Keeps the address in a file that only its owner can read. Raises UserError."""
    checked_url("json", address.url)
    if not address.token.isascii() or not address.token.isprintable():
        raise UserError("The token of the webhook has characters that no token has: copy it again.")
    path = path or webhook_file()
    temporary = temporary_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_secret(temporary, json.dumps({"url": address.url, "token": address.token}) + "\n")
        rename(temporary, path)
    except OSError as error:
        remove(temporary)
        raise UserError(
            f"The address can't be saved in {path} ({error.strerror}): make its folder writable."
        ) from error


def forget_address(path: Path | None = None) -> None:
    """Raises OSError if the file can't be removed."""
    saved = path or webhook_file()
    retry_busy(lambda: saved.unlink(missing_ok=True))


def address_error(service: str) -> str:
    """Why no message can be sent to `service`, with the remedy; "" if one can, as far as can be seen."""
    address = read_address()
    if address is None:
        return (
            "no address is saved on this machine; save it on the General tab of the window or by "
            f"`{command_name('webhook')} save`, or set {URL_VARIABLE}"
        )
    try:
        checked_url(service, address.url)
    except UserError as error:
        return str(error).rstrip(".")
    return ""
