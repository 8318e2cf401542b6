"""The figures of a training as a table in a CSV file."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from modules.config.atomic_file import new_file
from modules.config.errors import UserError
from modules.config.own_file import open_own
from modules.loggers.Logger import CLOSE_SECONDS, FileLogger, LoggedRun

FILE_NAME = "metrics.csv"


class CsvLogger(FileLogger):
    """Writes the figures as a table with a row for each step.

    The first column is `step`; another one is added when its first value is known. A resumed training continues the
    table, and replaces the rows of steps that it trains again.

    path: by default metrics.csv in the folder of the training.
    every_steps: log the figures of every so many optimizer steps.
    """

    title = "CSV"

    def __init__(self, path: str | os.PathLike | None = None, every_steps: int = 1):
        super().__init__(every_steps)
        self._path = None if path is None else Path(path)
        self._file: IO[bytes] | None = None

    def start(self, run: LoggedRun) -> None:
        super().start(run)
        self._path = self._path or run.folder / FILE_NAME
        self._columns = ["step"]
        self._row: dict[str, Any] = {}  # the last one, which more figures of its step may complete
        self._row_start = 0  # bytes before it

    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        self.attempt(self._write, figures, step)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        if self._file is not None:
            self.attempt(self._file.close)
            self._file = None

    def _write(self, figures: Mapping[str, float], step: int) -> None:
        if self._file is None:
            self._open(step)
        elif step != self._row["step"]:
            self._row_start = self._file.seek(0, os.SEEK_END)
            self._row = {"step": step}
        self._row.update(figures)
        if new := [name for name in self._row if name not in self._columns]:
            self._columns += new
            self._rewrite(self._rows(self._row_start))
        assert self._file is not None
        self._file.seek(self._row_start)
        self._file.write(_line(self._row.get(name, "") for name in self._columns))
        self._file.truncate()
        self._file.flush()

    def _open(self, step: int) -> None:
        """Takes over the rows of an earlier process up to `step`, from which this one continues."""
        assert self._path is not None
        self._row = {"step": step}
        kept = []
        for row in self._rows() if self._path.exists() else ():
            if int(row["step"]) < step:
                kept.append(row)
            elif int(row["step"]) == step:
                self._row = {**{name: value for name, value in row.items() if value != ""}, "step": step}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._rewrite(kept)

    def _rows(self, end: int | None = None) -> Iterator[dict[str, str]]:
        """The complete rows in the file, up to the byte `end`; its columns are added to those of this logger."""
        assert self._path is not None
        with self._path.open("rb") as file:
            content = file.read(end if end is not None else -1)
        text = content[: content.rfind(b"\n") + 1].decode("utf-8", errors="replace")  # a kill may leave a part
        reader = csv.DictReader(io.StringIO(text, newline=""), restval="")
        names = list(reader.fieldnames or ["step"])
        if names[0] != "step":
            raise UserError(f"{self._path} is not a table of a training: rename it, or choose another path")
        self._columns += [name for name in names if name not in self._columns]
        for row in reader:
            if None not in row and row["step"].isdigit():
                yield row

    def _rewrite(self, rows: Iterable[Mapping[str, str]]) -> None:
        """Writes the file anew with the columns of now, and opens it behind its last row."""
        assert self._path is not None
        kept = list(rows)
        if self._file is not None:
            self._file.close()
        with new_file(self._path) as temporary, open(temporary, "wb") as file:
            file.write(_line(self._columns))
            for row in kept:
                file.write(_line(row.get(name, "") for name in self._columns))
        self._file = open_own(self._path, "r+b")
        self._row_start = self._file.seek(0, os.SEEK_END)


def _line(values: Iterable[object]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue().encode("utf-8", errors="replace")
