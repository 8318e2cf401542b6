"""Reads the command that starts a training from a shell script, a batch file or a PowerShell script."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

_ASSIGNMENTS = (
    re.compile(r"""(?i)^\s*set\s+"?(?P<name>\w+)=(?P<value>[^"]*)"?\s*$"""),  # batch files
    re.compile(r"""^\s*\$(?:env:)?(?P<name>\w+)\s*=\s*(?P<value>"[^"]*"|'[^']*'|[^\s#]+)"""),  # PowerShell
    re.compile(r"""^\s*(?:export\s+)?(?P<name>\w+)=(?P<value>"[^"]*"|'[^']*'|[^\s#;]*)\s*(?:[#;].*)?$"""),  # shells
)
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)|%(\w+)%")
_COMMENT = re.compile(r"(?i)^\s*(?:#|::|@?rem\b)")
_CONTINUED = re.compile(r"(?<!\\)[\\^`]\s*$")
_ARGUMENT = re.compile(r"^\s*--[A-Za-z]")
_ENDS = {"&&", "||", ";", "|", "&", ">", ">>", "2>&1", "2>"}
MAX_VALUE = 10_000  # of a variable with others in it


@dataclass
class ScriptCommand:
    """A training script with its arguments.

    script: the file's name. arguments: by name without dashes, with "_" for "-"; one without values is True, one with a
    value a text, one with several a list. before: arguments of the launcher. rest: words that are no arguments.
    """

    script: str
    arguments: dict[str, Any] = field(default_factory=dict)
    before: list[str] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)


def read_commands(text: str, scripts: Collection[str], keeps_backslashes: bool) -> list[ScriptCommand]:
    """The commands that start one of the scripts.

    keeps_backslashes: whether a backslash is part of a path, as on Windows, and quotes nothing.
    """
    found: list[ScriptCommand] = []
    variables: dict[str, str] = {}
    for line in _joined_lines(text):
        for pattern in _ASSIGNMENTS:
            if match := pattern.match(line):
                variables[match["name"]] = _with_values(match["value"].strip().strip("\"'"), variables)
                break
        words = list(_words(_with_values(line, variables), keeps_backslashes))
        for number, word in enumerate(words):
            name = re.split(r"[\\/]", word)[-1]
            if name in scripts:
                found.append(_command(name, words[:number], words[number + 1 :]))
                break
    return found


def words_of(text: str) -> list[str]:
    """The words of a line, without quotes."""
    return list(_words(text, True))


def _joined_lines(text: str) -> Iterator[str]:
    """Lines with those that continue them: after the shell's sign, and lines of arguments where it was forgotten."""
    held, is_open = "", False
    for line in text.replace("\r\n", "\n").split("\n"):
        if _COMMENT.match(line):
            continue
        if held and not is_open and not _ARGUMENT.match(line):
            yield held
            held = ""
        is_open = bool(_CONTINUED.search(line))
        held += (_CONTINUED.sub("", line) if is_open else line) + " "
    if held:
        yield held


def _with_values(text: str, variables: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        return variables.get(match[1] or match[2] or match[3], match[0])

    changed = _VARIABLE.sub(value, text) if variables else text
    return changed if len(changed) <= MAX_VALUE else text


def _words(line: str, keeps_backslashes: bool) -> Iterator[str]:
    """Words between blanks; quotes hold blanks, and a comment ends the line."""
    word, quote, is_word, escaped = "", "", False, False
    for character in line:
        if escaped:
            word += character if character in " \"'\\$`" else f"\\{character}"
            escaped = False
        elif character == "\\" and not keeps_backslashes and quote != "'":
            escaped = is_word = True
        elif quote:
            quote = "" if character == quote else quote
            word += character if quote else ""
        elif character in "\"'":
            quote, is_word = character, True
        elif character.isspace():
            if is_word:
                yield word
            word, is_word = "", False
        elif character == "#" and not is_word:
            break
        else:
            word, is_word = word + character, True
    if is_word:
        yield word + ("\\" if escaped else "")


def _command(script: str, before: list[str], words: list[str]) -> ScriptCommand:
    command = ScriptCommand(script, before=before)
    values: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word in _ENDS:
            break
        if re.match(r"--?[A-Za-z]", word):
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            values[name] = [value] if equals else []
        elif name:
            values[name].append(word)
        else:
            command.rest.append(word)
    for name, found in values.items():
        command.arguments[name] = True if not found else found[0] if len(found) == 1 else found
    return command
