from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from modules.importers.ImportResult import Line


@dataclass(frozen=True)
class ExportResult:
    """Settings of Chorus as files of another program.

    files: name -> text; the names are those by which the files name each other. command: starts the training there, in
    the folder of the files. lost: settings that the files can't say. changed: those that mean something else there.
    to_do: what a person has to do before a start.
    """

    files: Mapping[str, str]
    command: str
    lost: list[Line] = field(default_factory=list)
    changed: list[Line] = field(default_factory=list)
    to_do: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The lists, first those that need to be read."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        lists = (
            ("Not exported", self.lost),
            ("Exported, with another meaning there", self.changed),
            ("To do before a start", self.to_do),
        )
        for title, lines in lists:
            yield f"{title}: {len(lines)}"
            yield from (f"  {line}" for line in lines)
