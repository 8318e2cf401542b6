"""Settings drawn at random from what their declarations allow: types, ranges with their ends, choices.

Unlike `mutations.py`, every value alone is valid, so that what is tested lies behind the reading of a file.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from modules.config.describe import SettingInfo, settings_by_path

NUM_CHANGED = (1, 1, 2, 3, 4, 6, 10, 25, 80)  # settings that differ from the ones given
WHOLE = (0, 1, 2, 3, 7, 100, 10**6, 2**31 - 1, 2**31)  # of numbers without an upper limit
FRACTIONS = (0.0, 1e-12, 0.3, 1.0, 1.5, 100.0, 1e6, 1e18, 1e300)
TEXTS = (
    "", " ", "a", "*", "attn", "to_q, to_k", ".*_hair", "(", "[", "\\", ",", ";", "|||", "{a|b}", "{a|", "cat, dog",
    "caf\u00e9 \U0001f431", "0.5", "1: 0.5, 0.1", "attn: 4, *: 0", "weight_decay=0.1", "nothing", "../x", "x" * 300,
)  # fmt: skip


def drawn_values(
    values: Mapping[str, Any], rng: random.Random, fixed: Sequence[str], paths: Sequence[str] = ("",)
) -> dict[str, Any]:
    """The values of a settings file: those given, some of them drawn anew, and some of the other settings.

    values: by path, as "concepts.0.path". fixed: paths that are not drawn, as "concepts[].path". paths: what a setting
    for a file or folder may be.
    """
    infos = [info for info in settings_by_path().values() if info.path not in fixed and info.type != "list"]
    chosen = rng.sample(infos, min(rng.choice(NUM_CHANGED), len(infos)))
    return nested({**values, **{info.path.replace("[]", ".0"): drawn_value(info, rng, paths) for info in chosen}})


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """{"concepts.0.path": "x"} as {"concepts": [{"path": "x"}]}; all entries of lists have the number 0."""
    whole: dict[str, Any] = {}
    for path, value in values.items():
        place: Any = whole
        names = [name for name in path.split(".") if name != "0"]
        is_list = [f"{name}.0." in path for name in names]
        for name, several in zip(names[:-1], is_list, strict=False):
            place = place.setdefault(name, [{}] if several else {})
            place = place[0] if several else place
        place[names[-1]] = value
    return whole


def drawn_value(info: SettingInfo, rng: random.Random, paths: Sequence[str] = ("",)) -> Any:
    """A value that the declaration of a setting allows."""
    if info.optional and rng.random() < 0.15:
        return None
    if info.type == "bool":
        return rng.random() < 0.5
    if info.type == "choice":
        return rng.choice(info.choices)
    if info.type == "str":
        return _text(info, rng, paths)
    if info.type == "list[str]":
        return [_text(info, rng, paths) for _ in range(rng.choice((0, 0, 1, 2)))]
    if info.type.startswith("list["):
        return [_number(info, rng, info.type == "list[int]") for _ in range(rng.choice((0, 1, 2, 3, 9)))]
    return _number(info, rng, info.type == "int")


def _text(info: SettingInfo, rng: random.Random, paths: Sequence[str]) -> str:
    return rng.choice(paths if info.format in ("file", "folder", "file_or_folder") else TEXTS)


def _number(info: SettingInfo, rng: random.Random, whole: bool) -> float:
    step = 1 if whole else 1e-9
    low = info.ge if info.ge is not None else info.gt + step if info.gt is not None else None
    high = info.le if info.le is not None else info.lt - step if info.lt is not None else None
    ends = [end for end in (low, high) if end is not None]
    inside = [value for value in (WHOLE if whole else FRACTIONS) if _is_between(value, low, high)]
    if low is not None and high is not None:
        inside += [low + step, high - step, _between(low, high, rng)]
    value = rng.choice([*ends, *ends, *(value for value in inside if _is_between(value, low, high))])
    return round(value) if whole else float(value)


def _between(low: float, high: float, rng: random.Random) -> float:
    """Small ones as often as large ones."""
    return math.exp(rng.uniform(math.log(max(low, 1e-6)), math.log(high))) if high > max(low, 1e-6) else low


def _is_between(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)
