"""Values as other programs write them: numbers and switches as text, infinity, nothing where there is a default."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from modules.session.redaction import NAMES_OF_SECRETS, holds_secret

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_SECRET = re.compile(rf"(?i){NAMES_OF_SECRETS}")
MAX_SHOWN = 80


def read_as(kind: str, value: Any) -> Any:
    """The value as one of `kind`: "bool", "int", "float", "str", "list", "dict" or "any".

    Raises ValueError, with what it is not, if it can't be read as one.
    """
    readers = {"bool": _bool, "int": _int, "float": _float, "str": _str}
    if kind in readers:
        return readers[kind](value)
    if (kind == "list" and not isinstance(value, list)) or (kind == "dict" and not isinstance(value, dict)):
        raise ValueError("is not a list" if kind == "list" else "is not a section")
    return value


def is_empty(value: Any) -> bool:
    """Whether there is no value, as null or "" say."""
    return value is None or (isinstance(value, str) and not value.strip())


def shown(name: str, value: Any) -> str:
    """The setting with its value, for a message; without the value if it may be a secret."""
    if isinstance(value, dict) or (isinstance(value, str) and holds_secret(value)):
        return name
    if isinstance(value, list):
        if any(isinstance(entry, (dict, list)) for entry in value) or holds_secret(str(value)):
            return name
        value = ", ".join(map(str, value))
    text = "true" if value is True else "false" if value is False else "empty" if is_empty(value) else str(value)
    return f"{name} {text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + '...'}"


def is_secret(name: str, value: Any) -> bool:
    """Whether a setting seems to be a token, a password or the like, by its name or its value."""
    return bool(_SECRET.search(name)) or (isinstance(value, str) and holds_secret(value))


def flat(values: Mapping[str, Any], known: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values by path, where a table knows the paths: {"unet": {"train": True}} -> ("unet.train", True)."""
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and path not in known:
            yield from flat(value, known, f"{path}.")
        else:
            yield path, value


def _bool(value: Any) -> bool:
    text = str(value).strip().lower()
    if isinstance(value, (bool, int, str)) and text in _TRUE + _FALSE:
        return text in _TRUE
    raise ValueError("is neither true nor false")


def _int(value: Any) -> int:
    number = _float(value)
    if not math.isfinite(number) or number != int(number):
        raise ValueError("is not a whole number")
    return int(number)


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError("is not a number")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError("is not a number") from None
    if math.isnan(number):
        raise ValueError("is not a number")
    return number


def _str(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError("is not a text")
    return str(value)
