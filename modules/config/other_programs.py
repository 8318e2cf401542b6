"""What the settings of other trainers are here: the table behind importers, search and error messages.

resources/other_programs/PROGRAM.yaml has one entry for each setting of a program; its head says what the columns mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Any

from modules.config.installation import ROOT
from modules.config.parse import read_values

FOLDER = ROOT / "resources" / "other_programs"
LABELS = ROOT / "resources" / "window_labels.yaml"
_BRACES = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class ForeignSetting:
    """A setting of another program.

    default: that program's. kind: of its values, "any" for several kinds.
    here: the path of the setting of Chorus, "" if there is none. by: the name of the conversion, "" if the value stays.
    values: its choices -> what they are here, where they have other names.
    why: what differs here. unused: why it has no effect here. instead: what to do without a counterpart.
    is_secret: whether its value is never read.
    """

    name: str
    default: Any
    kind: str
    here: str = ""
    by: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    unused: str = ""
    instead: str = ""
    is_secret: bool = False


@dataclass(frozen=True)
class Program:
    """Another program. settings: by name, in the order in which they are imported. facts: all else in its file."""

    label: str
    settings: Mapping[str, ForeignSetting]
    facts: Mapping[str, Any]

    @property
    def whose(self) -> str:
        """The possessive form of its name."""
        return f"{self.label}'" if self.label.endswith("s") else f"{self.label}'s"


@lru_cache
def load_program(name: str) -> Program:
    """The program that resources/other_programs/NAME.yaml describes."""
    values = read_values(FOLDER / f"{name}.yaml")
    settings = {}
    for names, entry in values.pop("settings").items():
        for one in _expanded(names):
            settings[one] = _setting(one, entry)
    return Program(values.pop("program"), settings, values)


@lru_cache
def all_programs() -> tuple[Program, ...]:
    """All other programs, in the order of their file names."""
    return tuple(load_program(path.stem) for path in sorted(FOLDER.glob("*.yaml")))


@lru_cache
def settings_by_foreign_name() -> Mapping[str, ForeignSetting]:
    """The settings of all other programs by name; of the same name, one that Chorus has."""
    named = [item for program in all_programs() for item in program.settings.items()]
    return dict(sorted(named, key=lambda item: bool(item[1].here)))


@lru_cache
def foreign_names() -> Mapping[str, tuple[str, ...]]:
    """The path of a setting of Chorus -> its names in the files of other programs."""
    names: dict[str, dict[str, None]] = {}
    for program in all_programs():
        for name, setting in program.settings.items():
            if setting.here:
                names.setdefault(setting.here.removesuffix("[]"), {})[name] = None
    return {path: tuple(found) for path, found in names.items()}


@lru_cache
def window_labels() -> Mapping[str, tuple[str, ...]]:
    """The path of a setting of Chorus -> its labels in the windows of other programs, where names don't tell."""
    return {path: tuple(labels) for path, labels in read_values(LABELS).items()}


def _setting(name: str, entry: Mapping[str, Any]) -> ForeignSetting:
    known = {"default", "type", "here", "by", "values", "why", "unused", "instead", "secret"}
    if unknown := entry.keys() - known:
        raise ValueError(f"{name} has {', '.join(sorted(unknown))}, which no column is called")
    default = entry.get("default")
    values = {
        str(choice).lower() if isinstance(choice, bool) else choice: here
        for choice, here in entry.get("values", {}).items()
    }
    texts = {key: entry[key] for key in ("here", "by", "why", "unused", "instead") if key in entry}
    kind = entry.get("type", type(default).__name__)
    return ForeignSetting(name, default, kind, values=values, is_secret=entry.get("secret", False), **texts)


def _expanded(names: str) -> Iterator[str]:
    """Every name that braces stand for: "{a,b}.c" -> "a.c", "b.c"."""
    pieces = _BRACES.split(names)
    choices = [piece.split(",") if number % 2 else [piece] for number, piece in enumerate(pieces)]
    yield from map("".join, product(*choices))
