"""A caption table that is edited in place: what is not changed keeps every byte."""

from __future__ import annotations

import codecs
import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from modules.curation.table_rows import TableRow, csv_rows, json_rows
from modules.data.caption_encodings import why_not_utf8
from modules.data.captions import plain_text
from modules.data.errors import CaptionError, DataError

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig


class CaptionTable:
    """The content of a table in CSV or JSON Lines as the training reads it, with the place of each caption.

    path, setting: for messages. Raises DataError if it can't be read.
    """

    def __init__(self, content: bytes, path: str, concept: ConceptConfig, setting: str):
        if reason := why_not_utf8(content):
            raise CaptionError(path, "encoding", reason)
        self._path = path
        self._mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
        self._text = content[len(self._mark) :].decode("utf-8")
        read = json_rows if path.lower().endswith(".jsonl") else csv_rows
        try:
            rows, self._new_row = read(self._text, path, concept, setting)
        except csv.Error as error:
            raise DataError(f"{path} is not a valid table ({error}): fix it, such as its quotation marks.") from error
        self._rows: dict[str, list[TableRow]] = defaultdict(list)
        for row in rows:
            self._rows[row.name].append(row)

    def captions_of(self, name: str) -> tuple[str | None, ...] | None:
        """The captions of an image, each on one line and None where it is null; None if it has no row.

        name: the path of the image below the concept's folder, with forward slashes.
        """
        if name not in self._rows:
            return None
        return tuple(caption and _one_line(caption) for row in self._rows[name] for caption in row.captions)

    def with_captions(self, captions: Mapping[str, Sequence[str]]) -> bytes:
        """The content of the table in which these images have these captions.

        Rows are added and removed where the number of captions differs; one row of an image always stays, for its
        other columns.
        """
        edits: list[tuple[int, int, str]] = []
        added: list[str] = []
        for name, wanted in captions.items():
            lines = [_one_line(caption) for caption in wanted]
            if name in self._rows:
                edits += self._edits(self._rows[name], lines if any(lines) else [])
            else:
                added += [self._new_row(name, line) for line in lines if line]
        parts, at = [], 0
        for start, end, text in sorted(edits):
            parts += [self._text[at:start], text]
            at = end
        text = "".join([*parts, self._text[at:]])
        if added:
            newline = "\r\n" if "\r\n" in self._text else "\n"
            is_open = not text.endswith(("\n", "\r"))  # its last line, which then has no end afterwards, either
            text += (newline if is_open else "") + newline.join(added) + ("" if is_open else newline)
        return self._mark + text.encode("utf-8")

    def check(self, before: CaptionTable, captions: Mapping[str, Sequence[str]]) -> None:
        """Raises DataError unless this table is read as `before` with these captions."""
        for name in self._rows.keys() | before._rows.keys():
            now, was = self.captions_of(name), before.captions_of(name)
            if name in captions:
                was = tuple(filter(None, map(_one_line, captions[name])))
                now = tuple(filter(None, now or ()))
            if now != was:
                raise DataError(f"{self._path} can't be changed for {name} by Chorus: change it in a text editor.")

    @staticmethod
    def _edits(rows: Sequence[TableRow], wanted: Sequence[str]) -> Iterator[tuple[int, int, str]]:
        """(start, end, new text) of the rows of an image that change."""
        places = [(number, caption or "") for number, row in enumerate(rows) for caption in row.captions]
        new: list[list[str]] = [[] for _ in rows]
        matcher = SequenceMatcher(None, [_one_line(caption) for _, caption in places], list(wanted), autojunk=False)
        for kind, old, old_end, first, end in matcher.get_opcodes():
            for line in range(first, end):
                if wanted[line] or kind == "equal":  # an empty line stands for no new caption
                    # beyond those that are replaced: behind the last of them
                    place = max(0, min(old + line - first, old_end - 1))
                    text = places[place][1] if kind == "equal" else wanted[line]
                    new[places[place][0] if places else 0].append(text)
        if not any(new):
            yield rows[0].start, rows[0].end, rows[0].written([])
            yield from ((row.start, row.end, "") for row in rows[1:])
            return
        for row, captions in zip(rows, new, strict=True):
            if captions != [caption or "" for caption in row.captions]:
                yield row.start, row.end, row.written(captions) if captions else ""


def _one_line(caption: str) -> str:
    """As the training reads it."""
    return " ".join(plain_text(caption).split())
