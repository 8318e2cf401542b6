"""The result of one check of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["ok", "warning", "fails"]


@dataclass(frozen=True)
class CheckResult:
    """name: of the check, a word or two. state: "fails" if training would fail, "warning" if it may or is slow.

    text: the finding, without a full stop. remedy: what to do about it, a sentence; empty if all is well.
    details: lines to show below the text, such as one per GPU. values: the figures, for programs.
    """

    name: str
    state: State
    text: str
    remedy: str = ""
    details: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
