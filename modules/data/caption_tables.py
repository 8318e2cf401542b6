"""Caption tables in a concept's folder: CSV or JSON Lines, including the layout of Hugging Face image folders."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
from collections.abc import Iterator
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Any

from modules.config.regular_file import is_special, open_regular, read_regular
from modules.data.caption_encodings import why_not_utf8
from modules.data.captions import MAX_CAPTION_BYTES, Table, check_length
from modules.data.errors import CaptionError, DataError

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig

NAMES = ("metadata.csv", "metadata.jsonl", "captions.csv", "captions.jsonl")
# Columns by their usual names, the first of a row counts. Case does not matter, and "File Name" is file_name.
FILE_COLUMNS = ("file_name", "filename", "file", "file_path", "image", "image_path", "path")
CAPTION_COLUMNS = ("caption", "text")
BEYOND = "fields beyond the columns"
DELIMITERS = (",", ";", "\t")


def read_table(concept: ConceptConfig, setting: str) -> Table:
    """The captions of a concept by path below its folder; an image with several rows has several captions.

    setting: "concepts.N", for error messages.
    Raises DataError if the table does not exist, can't be read or lacks a column.
    """
    path = find_table(concept, setting)
    found: dict[str, list[str]] = {}
    line = 0
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            for line, row in table_rows(file, path, concept):
                where = f"{path}, line {line}"
                name, captions = row_captions(row, concept, setting, where)
                for caption in captions:
                    if caption is not None:  # as in JSON, for a caption that is missing
                        found.setdefault(name, []).append(_one_line(caption, where))
    except UnicodeDecodeError as error:
        raise CaptionError(path, "encoding", why_not_utf8(read_regular(path)) or "is not UTF-8") from error
    except csv.Error as error:
        raise DataError(f"{path} is not a valid table ({error}): fix it, such as its quotation marks.") from error
    except OSError as error:
        raise DataError(f"{path} can't be read ({error.strerror}): make it a readable file.") from error
    if not line:
        raise DataError(f"{path} has no rows: add one for each image, or choose another {setting}.captions.")
    return {name: tuple(dict.fromkeys(captions)) for name, captions in found.items()}


def table_rows(file: IO[str], path: str, concept: ConceptConfig) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a table with the number of their last line. file: opened with newline="". Raises DataError."""
    is_json = path.lower().endswith(".jsonl")
    yield from _json_rows(file, path) if is_json else _csv_rows(file, path, wanted_columns(concept))


def row_captions(row: dict[str, Any], concept: ConceptConfig, setting: str, where: str) -> tuple[str, list[Any]]:
    """The image of a row, as a path below the concept's folder, and its captions, which are None if they are missing.

    where: the place of the row, for messages. Raises DataError if it lacks a column or has no file name.
    """
    name = _plain(_field(row, FILE_COLUMNS, where, "rename the column of the file names"), where)
    captions = _field(row, wanted_columns(concept), where, f"name one in {setting}.caption_column")
    return name, captions if isinstance(captions, list) else [captions]


def find_table(concept: ConceptConfig, setting: str) -> str:
    """The path of a concept's table. Raises DataError like `read_table`."""
    root = os.path.expanduser(concept.path)
    names = (concept.caption_table,) if concept.caption_table else NAMES
    for name in names:
        path = os.path.join(root, os.path.expanduser(name))
        if os.path.isfile(path) or is_special(path):  # which reading it explains
            if not path.lower().endswith((".csv", ".jsonl")):
                raise DataError.at(
                    f"{setting}.caption_table", f"{name}: must end in .csv or .jsonl; save it as one of these."
                )
            return path
    listed = ", ".join(names)
    raise DataError.at(
        f"{setting}.caption_table", f": {root} has no {listed}; add it, or choose another {setting}.captions."
    )


def unread_tables(concept: ConceptConfig) -> list[str]:
    """The names of the tables in a concept's folder that are not read, because none or another one was chosen."""
    root = os.path.expanduser(concept.path)
    if concept.captions == "table" and concept.caption_table:
        return []
    there = [name for name in NAMES if os.path.isfile(os.path.join(root, name))]
    return there[1:] if concept.captions == "table" else there


def wanted_columns(concept: ConceptConfig) -> tuple[str, ...]:
    """The columns that may have the captions."""
    return (concept.caption_column,) if concept.caption_column else CAPTION_COLUMNS


def _csv_rows(file: IO[str], path: str, wanted: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Raises DataError for a row with more fields than columns, whose caption would lose its end."""
    first = file.readline()
    delimiter = delimiter_of(first, wanted)
    # blanks before a quotation mark would make it a part of the field; strict, for else an open one takes all that
    # follows into its field
    reader = csv.DictReader(
        itertools.chain([first], file),
        restkey=BEYOND,
        restval="",
        delimiter=delimiter,
        skipinitialspace=True,
        strict=True,
    )
    columns = list(reader.fieldnames or ())
    used = columns_called(tuple(columns), FILE_COLUMNS + wanted)
    if twice := [column for column in used if columns.count(column) > 1]:
        raise DataError(f"{path}, line 1 has the column {twice[0]!r} twice: rename one.")
    for row in _with_lines(reader):
        where = f"{path}, line {reader.line_num}"
        if any(beyond := row.pop(BEYOND, ())):
            raise DataError(
                f"{where} has {len(columns) + len(beyond)} fields, but the table {len(columns)} columns: write "
                f'captions with "{delimiter}" between quotation marks.'
            )
        if any(row.values()):  # spreadsheets end a table with rows of delimiters
            yield reader.line_num, row


def _with_lines(reader: csv.DictReader[str]) -> Iterator[dict[str, Any]]:
    """The rows. Errors name the line where their row begins: a quotation mark that is not closed shows at the end."""
    while True:
        start = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise csv.Error(f"line {start}: {error}") from error
        yield row


def delimiter_of(header: str, wanted: tuple[str, ...]) -> str:
    """What divides the columns of a table: a semicolon or a tab only if its header has the columns that way.

    Spreadsheets write semicolons where the decimal point is a comma.
    """
    for delimiter in DELIMITERS:
        columns = tuple(next(csv.reader([header], delimiter=delimiter, skipinitialspace=True), ()))
        if columns_called(columns, FILE_COLUMNS) and columns_called(columns, wanted):
            return delimiter
    return DELIMITERS[0]


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
    """The value of the first of the columns `names` that a row has; None if it is null in all of them."""
    columns = columns_called(tuple(row), names)
    if columns:
        return next((row[column] for column in columns if row[column] is not None), None)
    wanted = " or ".join(map(repr, names if names != FILE_COLUMNS else names[:1]))
    there = ", ".join(str(name)[:40] for name in list(row)[:10]) or "no column"
    raise DataError(f"{where} has no column {wanted}: it has {there}; {remedy}.")


@lru_cache(maxsize=64)  # asked for by each row
def columns_called(columns: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that are called like one of `names`, in the order of these; the exact spelling comes first."""
    exact = ((name, column) for name in names for column in sorted(columns, key=lambda one: one != name))
    alike = (column for name, column in exact if _spelled_alike(column) == _spelled_alike(name))
    return tuple(dict.fromkeys(alike))


def _spelled_alike(column: str) -> str:
    return column.strip().lower().replace(" ", "_").replace("-", "_")


def _plain(name: Any, where: str) -> str:
    """A file name in the form that the folder walk returns."""
    if not isinstance(name, str):
        raise DataError(f"{where}: file_name is {name!r}, not a file name; write one.")
    if not name.strip():
        raise DataError(f"{where} has no file name: write one.")
    return name.strip().replace("\\", "/").removeprefix("./")


def _one_line(caption: Any, where: str) -> str:
    if not isinstance(caption, str):
        raise DataError(f"{where}: the caption is {str(caption)[:40]!r}, not text; write it in quotes.")
    check_length(caption, where)
    return " ".join(caption.split())
