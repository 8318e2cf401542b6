"""Parameters of another program's optimizer that come by name, as they become settings of Chorus."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from modules.importers.foreign_values import shown
from modules.importers.ImportResult import Line
from modules.importers.Translation import Translation


def take_betas(t: Translation, here: str, betas: Any, theirs: str, is_given: bool) -> None:
    """Those of the optimizer `here`. theirs: what they are called there."""
    names = ("beta1", "beta2", t.program.facts["betas"].get(here, ""))
    for name, value in zip(names, betas if isinstance(betas, list) else [], strict=False):
        if name:
            t.take_line(f"optimizer.{name}", value, shown(theirs, betas), is_given=is_given)


def take_parameters(
    t: Translation, here: str, values: Mapping[str, Any], given: Collection[str], prefix: str, ignored: Collection[str]
) -> None:
    """All others. prefix: before their names, in lines. ignored: those that another conversion takes."""
    paths = {"weight_decay": "weight_decay", **t.program.facts["parameters"].get(here, {})}
    for name, value in values.items():
        theirs = shown(f"{prefix}{name}", value)
        if name in paths:
            number = float(value) if isinstance(value, int) and not isinstance(value, bool) else value
            t.take_line(f"optimizer.{paths[name]}", number, theirs, is_given=name in given)
        elif name not in ignored:
            t.result.left.append(Line(theirs, why="this optimizer has no such parameter in Chorus"))


def library_arguments(t: Translation, values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Those that `optimizer.other_arguments` can hold; each of the others gets a line."""
    simple = {name: value for name, value in values.items() if name.isidentifier() and _is_simple(value)}
    for name in values.keys() - simple.keys():
        t.result.left.append(Line(shown(f"{prefix}{name}", values[name]), why="write it as a number or a switch"))
    return simple


def argument_text(arguments: Mapping[str, Any]) -> str:
    """As in `optimizer.other_arguments`: "momentum=0.9, betas=(0.9, 0.99)"."""
    return ", ".join(f"{k}={tuple(v) if isinstance(v, list) else v!r}" for k, v in arguments.items())


def _is_simple(value: Any) -> bool:
    if isinstance(value, list):
        return all(not isinstance(one, list) and _is_simple(one) for one in value)
    return isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))
