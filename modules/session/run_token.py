"""The token of a run: a secret that its processes share, by which they know each other's messages.

It is in the environment of the processes and in files of mode 0600, never in arguments, logs or the run folder.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from modules.config.errors import UserError
from modules.config.installation import command_name

TOKEN_VARIABLE = "CHORUS_TOKEN"
MIN_CHARS = 16
OWNER_ONLY = 0o600

_SUFFIX = ".token"


def token_of(env: Mapping[str, str] = os.environ) -> bytes:
    """The token in the environment; b"" if there is none. Raises UserError if it is too short to be a secret."""
    token = env.get(TOKEN_VARIABLE, "").strip()
    if token and len(token) < MIN_CHARS:  # the message must not contain it
        raise UserError(
            f"{TOKEN_VARIABLE} has {len(token)} characters: it must have at least {MIN_CHARS}; let "
            f"{command_name('multi_node')} make one."
        )
    return os.fsencode(token)


def new_token() -> str:
    return secrets.token_hex(32)


def sign(key: bytes, *parts: bytes) -> str:
    """The HMAC-SHA256 of `parts`, as 64 hexadecimal digits. Their boundaries are signed, too."""
    digest = hmac.new(key, digestmod="sha256")
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def is_signed(signature: str | bytes, key: bytes, *parts: bytes) -> bool:
    given = signature.encode("utf-8", "replace") if isinstance(signature, str) else signature
    return hmac.compare_digest(given, sign(key, *parts).encode())


def token_path(config_path: str) -> str:
    """Where the commands for a settings file find the token: beside it. The path may be another machine's."""
    return f"{config_path}{_SUFFIX}"


def make_token_file(path: str | os.PathLike) -> None:
    """Writes a new token to `path` unless the file exists, and makes the file readable by its owner only.

    Raises UserError if that is not possible, or if the file holds no token.
    """
    try:
        with contextlib.suppress(FileExistsError):
            write_secret(path, f"{new_token()}\n")
        text = Path(path).read_text(encoding="utf-8", errors="replace")
        if os.name == "posix" and os.stat(path).st_mode & 0o077:
            os.chmod(path, OWNER_ONLY)
    except OSError as error:
        raise UserError(
            f"The token file {os.fspath(path)!r} can't be used ({error.strerror}): make its folder writable, or put "
            "the settings file elsewhere."
        ) from error
    if len(text.split()) != 1 or len(text.strip()) < MIN_CHARS:
        raise UserError(f"The token file {os.fspath(path)!r} holds no token: delete it, and a new one will be made.")


def write_secret(path: str | os.PathLike, text: str) -> None:
    """Creates a file that only its owner can read. Raises FileExistsError if anything is at `path`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(path, flags, OWNER_ONLY), "w", encoding="ascii") as file:
        file.write(text)
