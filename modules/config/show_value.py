"""Format a user's value for an error message: short and on one line."""

from typing import Any

MAX_SHOWN = 60


def show_value(value: Any) -> str:
    """The value as written in a settings file, short and on one line."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return repr(value if len(value) <= MAX_SHOWN else value[:MAX_SHOWN] + "...")
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a huge number"  # str() raises above 4,300 digits
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    return "a section" if isinstance(value, dict) else f"a {type(value).__name__}"
