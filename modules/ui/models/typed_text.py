"""Parse what the user types into a field, and explain why it is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from modules.config.describe import NUMBER_LISTS, SettingInfo, range_text
from modules.config.explain import SQUARE, explain_one, square_side

if TYPE_CHECKING:
    from pydantic import ValidationError

WRONG_SETTING = "A setting is invalid: fix it first."
NO_GPU = "none"  # in the setting device_indexes, where an empty list means all


def read_text(info: SettingInfo, text: str) -> Any:
    """Parse typed text. Raises ValueError with the reason if it is invalid."""
    if info.type in ("str", "choice"):
        return text
    text = text.strip()
    if not text and info.optional:
        return None
    if info.path == "device_indexes" and text.lower() == NO_GPU:
        raise ValueError("none is chosen: tick at least one, or leave the field empty for all")
    if info.type == "list[str]":
        return [entry.strip() for entry in text.split(";") if entry.strip()]
    if info.type in NUMBER_LISTS:
        read = _read_whole if info.type == "list[int]" else _read_number
        return [read(entry) for entry in re.split(r"[,;\s]+", text) if entry]
    if not text:
        raise ValueError("it must not be empty")
    if info.path.endswith("resolution") and (side := square_side(text)):
        raise ValueError(f"'{text}' is a width and a height: give one number, {side}, {SQUARE}")
    if info.type == "int":
        return _read_whole(text)
    if info.type == "float":
        return _read_number(text)
    return text


def refusal_of(path: str, info: SettingInfo, value: Any, error: ValidationError) -> str:
    """A sentence on why a setting refuses a value, short enough to fit below a field."""
    problem = error.errors(include_url=False)[0]
    limits = range_text(info)
    if limits and problem["type"].startswith(("greater_than", "less_than")):
        entry = "each entry " if info.type in NUMBER_LISTS else ""
        return f"{info.label}: {entry}must be {limits}."
    return explain_one([*path.split("."), *problem["loc"][1:]], problem, "")


def _read_whole(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,30}", text):
        number = _read_number(text)
        if number != int(number):
            raise ValueError(f"'{text[:30]}' is not a whole number")
        return int(number)
    return int(text)


def _read_number(text: str) -> float:
    # No decimal comma, although many countries use it: 1,000 would be ambiguous.
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", text):
        raise ValueError(f"'{text[:30]}' is not a number")
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"'{text[:30]}' is too large")
    return number


def moved_texts(typed: Mapping[str, Any], path: str, places: Mapping[int, int]) -> dict[str, Any]:
    """Refused input, by path, after the parts of the list at `path` were moved. places: of parts, by the one before;
    the input of a part that is in none is dropped."""
    moved = {}
    for one, text in typed.items():
        if match := re.fullmatch(rf"{re.escape(path)}\.([0-9]+)\.(.*)", one):
            if int(match[1]) in places:
                moved[f"{path}.{places[int(match[1])]}.{match[2]}"] = text
        else:
            moved[one] = text
    return moved
