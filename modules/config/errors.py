"""What is raised when the user, not the program, made the mistake."""

from __future__ import annotations

from modules.config.visible_text import visible_line


class UserError(Exception):
    """A mistake the user can mend; `str()` is one sentence that names what, its value, the rule and the remedy.

    The sentence is one line that is safe to print and log, whatever the names and values in it: nobody who raises an
    error has to think of that.
    """

    def __str__(self) -> str:
        return visible_line(super().__str__())


class ConfigError(UserError):
    """Settings that can't be used; `problems` holds one sentence for each mistake, `str()` one line for each.

    All mistakes of a file are reported together, so that nobody mends them one start at a time.
    """

    def __init__(self, problems: str | list[str]):
        self.problems = list(map(visible_line, [problems] if isinstance(problems, str) else problems))
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(self.problems)


def first_line(error: Exception) -> str:
    """What a library's error says, for the middle of a sentence: its first line, or its class if it has no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
