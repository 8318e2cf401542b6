"""What has been measured, in a file that is written after each part, so that hours can be spread over days."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from modules.config.errors import UserError
from modules.session.atomic import write_json
from scripts.benchmarks.results import Comparison, Found

FINISHED = "finished"


class ResultsFile:
    """path: None if nothing is to be kept. machine: what it is measured on. resumes: go on with what `path` has.

    Raises UserError if that can't be: of another machine, or without the names of its parts.
    """

    def __init__(self, path: Path | None, machine: dict[str, Any], resumes: bool = False):
        self._path = path
        self._values: dict[str, Any] = {"machine": machine, "comparisons": [], FINISHED: []}
        self.rows: list[tuple[str, ...]] = []
        if resumes and path is not None and path.exists():
            self._go_on(path)

    def has(self, benchmark: str, part: str) -> bool:
        """Whether a part has been measured to its end."""
        return [benchmark, part] in self._values[FINISHED]

    def add(self, benchmark: str, part: str, found: Found) -> None:
        section = "comparisons" if isinstance(found, Comparison) else benchmark
        row = found.row()
        self.rows.append(row)
        entry = {"benchmark": benchmark, "part": part, **found.as_values(), "row": row}
        self._values.setdefault(section, []).append(entry)

    def finish(self, benchmark: str, part: str) -> None:
        self._values[FINISHED].append([benchmark, part])
        self.write()

    def write(self) -> None:
        if self._path is not None and self.rows:
            write_json(self._path, self._values)

    def _go_on(self, path: Path) -> None:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            finished, machine = values[FINISHED], values["machine"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"--resume: {path} is not a file that --json has written; name another one.") from error
        now = self._values["machine"]
        if changed := [name for name, value in now.items() if machine.get(name) != value]:
            was = ", ".join(f"{name} was {machine.get(name)} and is {now[name]}" for name in changed)
            raise UserError(f"--resume: {path} was measured otherwise ({was}); write to another file.")
        # what was found of a part that did not end would be there twice
        for name, entries in values.items():
            if name not in ("machine", FINISHED):
                values[name] = [one for one in entries if [one["benchmark"], one["part"]] in finished]
                self.rows += [tuple(one["row"]) for one in values[name]]
        self._values = values
