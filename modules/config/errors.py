"""Exceptions for mistakes of the user rather than bugs of the program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from modules.config.problems import Problem, Remedy
from modules.config.visible_text import visible_line

if TYPE_CHECKING:
    from typing_extensions import Self


class UserError(Exception):
    """A mistake that the user can fix. `str()` is one sentence that names the setting, its value, the rule and the
    remedy.

    The sentence is a single line that is safe to print and log, whatever names and values it contains, so that code
    that raises an error need not care.

    setting: the path of the setting to change; "" if it is none in particular. remedy: what would solve it, if known.
    images: paths of those with the fault.
    problems: what is wrong, each with its setting and remedy, in the order of the lines of `str()`.
    """

    def __init__(self, text: str = "", setting: str = "", remedy: Remedy | None = None, images: Sequence[str] = ()):
        super().__init__(text)
        self.problems = [Problem(setting, visible_line(str(text)), remedy=remedy, images=tuple(images))]

    @classmethod
    def at(cls, setting: str, text: str) -> Self:
        """The mistake of one setting, with whose path the sentence begins. text: the rest of it."""
        return cls(f"{setting}{text if text.startswith(':') else f' {text}'}", setting)

    @classmethod
    def of(cls, problem: Problem) -> Self:
        return cls(problem.message, problem.path, problem.remedy)

    def __str__(self) -> str:
        return visible_line(super().__str__())


class ConfigError(UserError):
    """Settings that can't be used. `str()` is one line per mistake.

    All mistakes of a file are reported together, so that users can fix them in one go.
    """

    def __init__(self, problems: str | Sequence[Problem], setting: str = "", remedy: Remedy | None = None):
        if isinstance(problems, str):
            problems = [Problem(setting, problems, remedy=remedy)]
        super().__init__()
        self.args = (problems,)  # for pickling between processes
        self.problems = [replace(problem, message=visible_line(problem.message)) for problem in problems]

    def __str__(self) -> str:
        return "\n".join(problem.message for problem in self.problems)


class ModelFileError(UserError, ValueError):
    """A JSON file of a model's folder that can't be used. `str()` is one sentence that starts with its path."""


def first_line(error: Exception) -> str:
    """The first line of a library's error message, for use inside a sentence; its class if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
