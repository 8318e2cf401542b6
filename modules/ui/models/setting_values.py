"""The values of a settings file, nested or flat: flat are all settings as path -> value, to be compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from modules.config.describe import settings_by_path
from modules.config.explain import generic_path


@dataclass(frozen=True)
class Length:
    """Among flat values, how many parts a list has."""

    number: int


def flatten(values: dict) -> dict[str, Any]:
    """Flat values; a list of parts gives its length and what is in its parts."""
    return dict(_walk(values, ""))


def plain(value: Any) -> Any:
    """A flat value for people: of a list how many parts it has."""
    return value.number if isinstance(value, Length) else value


def value_in(values: dict, path: str) -> Any:
    """The part or the value at `path` of nested values. KeyError or IndexError where there is none."""
    value: Any = values
    for name in path.split("."):
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value


def put_value(values: dict, path: str, value: Any) -> None:
    """Sets what is at `path` of nested values."""
    parent, _, name = path.rpartition(".")
    place = value_in(values, parent) if parent else values
    place[int(name) if isinstance(place, list) else name] = value


def copied(value: Any) -> Any:
    """A value that shares no list or section with the one given."""
    return json.loads(json.dumps(value)) if isinstance(value, (list, dict)) else value


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _walk(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and settings_by_path()[generic_path(path)].type == "list":
        yield path, Length(len(value))
        for number, inner in enumerate(value):
            yield from _walk(inner, f"{path}.{number}")
    else:
        yield path, value
