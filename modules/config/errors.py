"""Exceptions for mistakes of the user rather than bugs of the program."""

from __future__ import annotations

from modules.config.visible_text import visible_line


class UserError(Exception):
    """A mistake that the user can fix. `str()` is one sentence that names the setting, its value, the rule and the
    remedy.

    The sentence is a single line that is safe to print and log, whatever names and values it contains, so that code
    that raises an error need not care.
    """

    def __str__(self) -> str:
        return visible_line(super().__str__())


class ConfigError(UserError):
    """Settings that can't be used. `problems` has one sentence per mistake, `str()` one line per mistake.

    All mistakes of a file are reported together, so that users can fix them in one go.
    """

    def __init__(self, problems: str | list[str]):
        self.problems = list(map(visible_line, [problems] if isinstance(problems, str) else problems))
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(self.problems)


class ModelFileError(UserError, ValueError):
    """A JSON file of a model's folder that can't be used. `str()` is one sentence that starts with its path."""


def first_line(error: Exception) -> str:
    """The first line of a library's error message, for use inside a sentence; its class if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
