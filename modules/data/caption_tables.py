"""Caption tables in a concept's folder: CSV or JSON Lines, including the layout of Hugging Face image folders."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

from modules.config.regular_file import is_special, open_regular, read_regular
from modules.data.caption_encodings import why_not_utf8
from modules.data.captions import MAX_CAPTION_BYTES, Table, check_length
from modules.data.errors import CaptionError, DataError

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig

NAMES = ("metadata.csv", "metadata.jsonl", "captions.csv", "captions.jsonl")
FILE_COLUMN = "file_name"
CAPTION_COLUMNS = ("caption", "text")


def read_table(concept: ConceptConfig, setting: str) -> Table:
    """The captions of a concept by path below its folder; an image with several rows has several captions.

    setting: "concepts.N", for error messages.
    Raises DataError if the table does not exist, can't be read or lacks a column.
    """
    path = find_table(concept, setting)
    wanted = (concept.caption_column,) if concept.caption_column else CAPTION_COLUMNS
    found: dict[str, list[str]] = {}
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            rows = _json_rows(file, path) if path.lower().endswith(".jsonl") else _csv_rows(file)
            for line, row in rows:
                where = f"{path}, line {line}"
                name = _plain(_field(row, (FILE_COLUMN,), where, "rename the column of the file names"), where)
                captions = _field(row, wanted, where, f"name one in {setting}.caption_column")
                for caption in captions if isinstance(captions, list) else [captions]:
                    found.setdefault(name, []).append(_one_line(caption, where))
    except UnicodeDecodeError as error:
        raise CaptionError(path, "encoding", why_not_utf8(read_regular(path)) or "is not UTF-8") from error
    except csv.Error as error:
        raise DataError(f"{path} is not a valid table ({error}): fix it.") from error
    except OSError as error:
        raise DataError(f"{path} can't be read ({error.strerror}): make it a readable file.") from error
    return {name: tuple(dict.fromkeys(captions)) for name, captions in found.items()}


def find_table(concept: ConceptConfig, setting: str) -> str:
    """The path of a concept's table. Raises DataError like `read_table`."""
    root = os.path.expanduser(concept.path)
    names = (concept.caption_table,) if concept.caption_table else NAMES
    for name in names:
        path = os.path.join(root, os.path.expanduser(name))
        if os.path.isfile(path) or is_special(path):  # which reading it explains
            if not path.lower().endswith((".csv", ".jsonl")):
                raise DataError(f"{setting}.caption_table {name}: must end in .csv or .jsonl; save it as one of these.")
            return path
    listed = ", ".join(names)
    raise DataError(f"{setting}.caption_table: {root} has no {listed}; add it, or choose another {setting}.captions.")


def _csv_rows(file: IO[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(file, restval="")
    for row in reader:
        row.pop(None, None)  # fields beyond the columns
        yield reader.line_num, row


def _json_rows(file: IO[str], path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    while line := file.readline(16 * MAX_CAPTION_BYTES):
        number += 1
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number} is not a JSON object: write one object per image.") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number} is not a JSON object: write one object per image.")
        yield number, row


def _field(row: dict[str, Any], names: tuple[str, ...], where: str, remedy: str) -> Any:
    for name in names:
        if row.get(name) is not None:
            return row[name]
    wanted = " or ".join(map(repr, names))
    there = ", ".join(str(name)[:40] for name in list(row)[:10]) or "no column"
    raise DataError(f"{where} has no column {wanted}: it has {there}; {remedy}.")


def _plain(name: Any, where: str) -> str:
    """A file name in the form that the folder walk returns."""
    if not isinstance(name, str):
        raise DataError(f"{where}: {FILE_COLUMN} is {name!r}, not a file name; write one.")
    return name.strip().replace("\\", "/").removeprefix("./")


def _one_line(caption: Any, where: str) -> str:
    if not isinstance(caption, str):
        raise DataError(f"{where}: the caption is {str(caption)[:40]!r}, not text; write it in quotes.")
    check_length(caption, where)
    return " ".join(caption.split())
