"""The values of a settings file, nested as in the file or flat (path -> value) for comparison."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from modules.config.describe import settings_by_path
from modules.config.explain import generic_path


@dataclass(frozen=True)
class Length:
    """The number of parts of a list, among flat values."""

    number: int


def flatten(values: dict) -> dict[str, Any]:
    """Flatten nested values; a list of parts becomes its Length and the values of its parts."""
    return dict(_walk(values, ""))


def plain(value: Any) -> Any:
    """A flat value for display: for a list the number of parts."""
    return value.number if isinstance(value, Length) else value


def value_in(values: dict, path: str) -> Any:
    """The section or value at `path` in nested values. Raises KeyError or IndexError if there is none."""
    value: Any = values
    for name in path.split("."):
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value


def put_value(values: dict, path: str, value: Any) -> None:
    """Set the value at `path` in nested values."""
    parent, _, name = path.rpartition(".")
    place = value_in(values, parent) if parent else values
    place[int(name) if isinstance(place, list) else name] = value


def copied(value: Any) -> Any:
    """A deep copy of a value."""
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
