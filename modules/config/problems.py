"""What would stop or spoil a run, and what would solve it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Remedy:
    """text: of the button that applies it, such as "Set to 64". values: setting -> the value that it gets."""

    text: str
    values: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Problem:
    """path: the setting to change; "" if it is none in particular. message: one sentence, which names settings as in
    files (`labels.with_labels` names them as in the window). blocking: whether it prevents the run from starting,
    rather than spoiling it. remedy: what would solve it, if that is known. images: paths of those with the fault, or of
    some of them."""

    path: str
    message: str
    blocking: bool = True
    remedy: Remedy | None = None
    images: tuple[str, ...] = ()


def warning(message: str) -> Problem:
    """What may spoil a run, and is the fault of no setting in particular."""
    return Problem("", message, blocking=False)


def set_to(path: str, value: Any, shown: str = "") -> Remedy:
    """The remedy that sets one setting. shown: the value as the window shows it, if it differs."""
    return Remedy(f"Set to {shown or value}", {path: value})


def switch_off(path: str) -> Remedy:
    return Remedy("Switch off", {path: False})


def either(names: list[str]) -> str:
    """Names to choose from, in the words of a message: "a, b or c"."""
    return f"{', '.join(names[:-1])} or {names[-1]}"
