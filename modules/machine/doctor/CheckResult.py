"""What one check of the machine found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["ok", "warning", "fails"]


@dataclass(frozen=True)
class CheckResult:
    """name: of the check, a word or two. state: "fails" where training would, "warning" where it may, or is slow.

    text: what was found, without a full stop. remedy: what to do about it, a sentence; empty where all is well.
    details: lines that belong below the text, such as one for each GPU. values: the figures, for programs.
    """

    name: str
    state: State
    text: str
    remedy: str = ""
    details: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
