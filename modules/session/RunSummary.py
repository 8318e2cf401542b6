"""What a run would do, or why it would be refused, as `scripts/train.py --dry-run` says it to people and programs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from modules.config.problems import Problem
from modules.config.visible_text import visible_line

if TYPE_CHECKING:
    from typing_extensions import Self


GPU_MEMORY, SYSTEM_MEMORY, MEMORY = "GPU memory", "System memory", "Memory"  # labels of lines


@dataclass(frozen=True)
class RunSummary:
    """lines: (label, text). problems: why the run would be refused; there is nothing else then. In problems and
    warnings, settings are named as in files."""

    lines: tuple[tuple[str, str], ...] = ()
    warnings: tuple[Problem, ...] = ()
    problems: tuple[Problem, ...] = ()

    def text(self) -> str:
        """A line for each entry and each warning, with the labels in one column."""
        lines = [*self.lines, *(("Warning", one.message) for one in self.warnings)]
        return "\n".join(visible_line(f"{label + ':':<15}{text}") for label, text in lines)

    def to_json(self) -> str:
        """One line of ASCII."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        return TypeAdapter(cls).validate_json(text)
