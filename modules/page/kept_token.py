"""The token of the page that the window serves, kept so that an address saved on a phone stays the same."""

from __future__ import annotations

from pathlib import Path

from modules.config.atomic_file import remove, rename, temporary_beside
from modules.config.errors import UserError
from modules.page.access import is_usable_token, new_token
from modules.session.run_token import write_secret


def kept_token(path: Path) -> str:
    """The token in a file that only its owner can read; a new one if there is none yet, or what is there is no token.

    Raises UserError if a new one can't be kept.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        token = ""
    return token if is_usable_token(token) else renew_token(path)


def renew_token(path: Path) -> str:
    """Replaces the token: addresses with the former one no longer open the page. Raises UserError."""
    token, temporary = new_token(), temporary_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_secret(temporary, f"{token}\n")
        rename(temporary, path)
    except OSError as error:
        remove(temporary)
        raise UserError(
            f"The token of the page can't be kept in {path} ({error.strerror}): make its folder writable."
        ) from error
    return token
