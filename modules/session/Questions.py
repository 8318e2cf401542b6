"""Questions in a terminal, with defaults in brackets; invalid answers are asked again, valid ones can be saved."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from modules.config.errors import UserError
from modules.config.visible_text import visible_line
from modules.session.atomic import write_json
from modules.session.printing import print_text

Read = Callable[[str], str]  # an answer as typed -> the normalized answer; raises UserError with the reason if invalid


class Questions:
    """Asks questions in the terminal of this process.

    given: question name -> answer given in advance; an invalid one is an error and is not asked again.
    last: the answers of last time, which become the defaults if they are still valid.
    answers: all answers so far, as `Read` returned them. num_asked: how many a person has given.
    """

    def __init__(self, given: Mapping[str, str], last: Mapping[str, str] | None = None):
        self.answers: dict[str, str] = {}
        self.last = dict(last or {})
        self.given = given
        self.num_asked = 0

    def ask(self, name: str, text: str, read: Read, default: str | None = None) -> str:
        """Ask the question `text` and return the answer; an empty answer means the default, if there is one.

        Raises UserError for an invalid answer given in advance, and if nobody can answer.
        """
        if name in self.given:
            answer = read(self.given[name])
        else:
            default = self._kept(name, read) or default
            prompt = f"{text} [{default}]: " if default else f"{text}: "
            answer = _until_right(prompt, default or "", read)
            self.num_asked += 1
        self.answers[name] = answer
        return answer

    def ask_whether(self, name: str, text: str, default: bool) -> bool:
        """As `ask`, for a yes/no question."""
        return self.ask(name, text, read_choice("yes", "no"), "yes" if default else "no") == "yes"

    def _kept(self, name: str, read: Read) -> str | None:
        try:
            return read(self.last[name]) if name in self.last else None
        except UserError:  # what it refers to no longer exists
            return None


def read_choice(*choices: str) -> Read:
    """Accepts one of the choices, or an unambiguous beginning of it."""

    def read(text: str) -> str:
        matches = [choice for choice in choices if text and choice.startswith(text.lower())]
        if len(matches) != 1:
            raise UserError(f"{text!r} is none of the answers: write {', '.join(choices[:-1])} or {choices[-1]}.")
        return matches[0]

    return read


def load_answers(path: Path) -> dict[str, str]:
    """The answers that `save_answers` wrote; empty if the file is missing or unreadable."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return {name: text for name, text in values.items() if isinstance(text, str)} if isinstance(values, dict) else {}


def save_answers(path: Path, answers: Mapping[str, str]) -> None:
    """Write the answers to a file, as defaults for next time. Raises OSError if it can't be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, dict(answers))


def _until_right(prompt: str, default: str, read: Read) -> str:
    while True:
        try:
            text = input(visible_line(prompt)).strip()
        except EOFError:
            print()
            raise UserError(
                "The questions got no answer: answer them in a terminal, or by options with --yes (--help lists them)."
            ) from None
        try:
            return read(text or default)
        except UserError as error:
            print_text(error)
