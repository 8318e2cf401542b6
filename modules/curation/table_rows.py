"""The rows of caption tables with their places in the text. The training's own reader says what is in them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from modules.data.caption_tables import (
    FILE_COLUMNS,
    columns_called,
    delimiter_of,
    row_captions,
    table_rows,
    wanted_columns,
)
from modules.data.errors import DataError

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder()

NewRow = Callable[[str, str], str]
"""(path of an image below the concept's folder, caption) -> a row without its line end."""


class TableRow(Protocol):
    """A row. start, end: its place in the text, with its line end. captions: None where they are null."""

    @property
    def name(self) -> str: ...

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def captions(self) -> Sequence[str | None]: ...

    def written(self, captions: Sequence[str]) -> str:
        """The row with these captions, or several, one for each; without any, the row with an empty caption."""
        ...


@dataclass(frozen=True)
class _JsonRow:
    """line: its text. span: the place of the captions in it. is_list: whether they are a list. escaped: whether
    letters that are not ASCII are written as escapes."""

    name: str
    start: int
    end: int
    captions: Sequence[str | None]
    line: str
    span: tuple[int, int]
    is_list: bool
    escaped: bool

    def written(self, captions: Sequence[str]) -> str:
        if self.is_list:
            return self._with(list(captions))
        if not captions:
            return self._with(None)
        return _lines([self._with(caption) for caption in captions])

    def _with(self, value: Any) -> str:
        return self.line[: self.span[0]] + json.dumps(value, ensure_ascii=self.escaped) + self.line[self.span[1] :]


@dataclass(frozen=True)
class _CsvRow:
    """text: the row's. span: the place of the caption in it. before: the delimiters that a row lacks that ends before
    the column of the captions."""

    name: str
    start: int
    end: int
    captions: Sequence[str | None]
    text: str
    span: tuple[int, int]
    before: str
    delimiter: str

    def written(self, captions: Sequence[str]) -> str:
        return _lines([self._with(caption) for caption in captions or [""]])

    def _with(self, caption: str) -> str:
        start, end = self.span
        quoted = self.text[start:end].startswith('"')
        return self.text[:start] + self.before + _csv_field(caption, self.delimiter, quoted) + self.text[end:]


def json_rows(text: str, path: str, concept: ConceptConfig, setting: str) -> tuple[list[TableRow], NewRow]:
    """The rows of JSON Lines, and what makes a new one. Raises DataError."""
    escaped = text.isascii() and "\\u" in text
    places = (match for match in _LINE.finditer(text) if match[0].strip())
    rows: list[TableRow] = []
    columns = FILE_COLUMNS[0], wanted_columns(concept)[-1 if not concept.caption_column else 0]
    read = list(table_rows(io.StringIO(text, newline=""), path, concept))
    for (number, row), place in zip(read, places, strict=True):
        name, captions = row_captions(row, concept, setting, f"{path}, line {number}")
        column = _caption_column(row, concept)
        if not rows:
            columns = columns_called(tuple(row), FILE_COLUMNS)[0], column
        span = _value_spans(place[0])[column]
        is_list = isinstance(row[column], list)
        rows.append(_JsonRow(name, *place.span(), captions, place[0], span, is_list, escaped))

    def new_row(name: str, caption: str) -> str:
        return json.dumps({columns[0]: name, columns[1]: caption}, ensure_ascii=escaped)

    return rows, new_row


def csv_rows(text: str, path: str, concept: ConceptConfig, setting: str) -> tuple[list[TableRow], NewRow]:
    """The rows of CSV, and what makes a new one. Raises DataError and csv.Error."""
    wanted = wanted_columns(concept)
    read = [(number, row) for number, row in table_rows(io.StringIO(text, newline=""), path, concept)]
    delimiter = delimiter_of(_LINE.match(text)[0], wanted)  # type: ignore[index] # it matches any text
    header, *written = _csv_fields(text, delimiter)
    columns = [value for value, _, _ in header]
    filled = [fields for fields in written if any(value for value, _, _ in fields)]
    rows: list[TableRow] = []
    for (number, row), fields in zip(read, filled, strict=True):
        values = [value for value, _, _ in fields][: len(columns)]
        if row != dict(zip(columns, values + [""] * (len(columns) - len(values)), strict=True)):
            raise DataError(f"{path}, line {number} can't be edited in place: save the table again from a spreadsheet.")
        name, captions = row_captions(row, concept, setting, f"{path}, line {number}")
        at, start, end = columns.index(_caption_column(row, concept)), fields[0][1], fields[-1][2]
        lacking = max(0, at - len(fields) + 1)
        span = (end, end) if lacking else fields[at][1:]
        newline = _LINE.match(text, end)[0]  # type: ignore[index]
        place = start, end + len(newline)
        inner = span[0] - start, span[1] - start
        rows.append(_CsvRow(name, *place, captions, text[place[0] : place[1]], inner, delimiter * lacking, delimiter))
    name_at = columns.index(columns_called(tuple(columns), FILE_COLUMNS)[0])
    caption_at = columns.index(columns_called(tuple(columns), wanted)[0])

    def new_row(name: str, caption: str) -> str:
        fields = [""] * len(columns)
        fields[name_at], fields[caption_at] = (_csv_field(value, delimiter, False) for value in (name, caption))
        return delimiter.join(fields)

    return rows, new_row


def _caption_column(row: dict[str, Any], concept: ConceptConfig) -> str:
    """The column that the captions of a row are read from."""
    columns = columns_called(tuple(row), wanted_columns(concept))
    return next((column for column in columns if row[column] is not None), columns[0])


def _value_spans(line: str) -> dict[str, tuple[int, int]]:
    """The places of the values of a JSON object, by their names. line: of which `json` reads an object."""
    spans: dict[str, tuple[int, int]] = {}
    at = line.index("{") + 1
    while line[at := _after_space(line, at)] != "}":
        name, at = _DECODER.raw_decode(line, _after_space(line, at + (line[at] == ",")))
        start = _after_space(line, _after_space(line, at) + 1)  # behind the colon
        _, at = _DECODER.raw_decode(line, start)
        spans[name] = start, at
    return spans


def _after_space(line: str, at: int) -> int:
    return _SPACE.match(line, at).end()  # type: ignore[union-attr] # it matches any text


def _csv_fields(text: str, delimiter: str) -> Iterator[list[tuple[str, int, int]]]:
    """(value, start, end) of the fields of each row that has any; the place is that of what stands for the value."""
    field = re.compile(rf' *(?:"((?:[^"]|"")*)"|([^{delimiter}\r\n]*))')
    at, row = 0, []
    while at < len(text):
        match = field.match(text, at)
        assert match is not None  # it matches any text
        quoted, plain = match.groups()
        value = plain if quoted is None else quoted.replace('""', '"')
        start = match.start(2) if quoted is None else match.start(1) - 1
        row.append((value, start, match.end()))
        at = match.end()
        if text.startswith(delimiter, at):
            at += 1
            if at == len(text):
                row.append(("", at, at))
            continue
        at += 2 if text.startswith("\r\n", at) else 1
        if len(row) > 1 or match.end() > match.start():
            yield row
        row = []
    if row:
        yield row


def _csv_field(value: str, delimiter: str, quoted: bool) -> str:
    if quoted or delimiter in value or value.startswith('"') or value != value.strip() or "\n" in value:
        return '"' + value.replace('"', '""') + '"'
    return value


def _lines(rows: Sequence[str]) -> str:
    """Several rows in place of one, whose line end the last of them lacks if it did."""
    end = re.search(r"[\r\n]*\Z", rows[0])[0]  # type: ignore[index] # it matches any text
    return (end or "\n").join(row.removesuffix(end) for row in rows) + end
