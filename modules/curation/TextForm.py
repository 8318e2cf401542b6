"""How a text is written in its file, so that it is written back like this."""

from __future__ import annotations

import re
from dataclasses import dataclass

from modules.data.caption_encodings import split_mark

_NEWLINE = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class TextForm:
    """mark: the byte order mark. newline: the one that most lines end with. ending: line ends after the text.

    The defaults are those of a new file.
    """

    mark: bytes = b""
    encoding: str = "UTF-8"
    newline: str = "\n"
    ending: str = ""

    @classmethod
    def split(cls, content: bytes) -> tuple[str, TextForm]:
        r"""The text in a file, whose lines end with \n, and its form. Raises UnicodeDecodeError."""
        mark, encoding = split_mark(content)
        written = content[len(mark) :].decode(encoding)
        text = written.rstrip("\r\n")
        found = _NEWLINE.findall(written)
        newline = max(("\n", "\r\n", "\r"), key=found.count)
        return _NEWLINE.sub("\n", text), cls(mark, encoding, newline, written[len(text) :])

    def joined(self, text: str) -> bytes:
        """The content of a file with this text. Raises UnicodeEncodeError if the encoding lacks one of its letters."""
        lines = _NEWLINE.sub("\n", text).rstrip("\n").replace("\n", self.newline)
        return self.mark + (lines + self.ending).encode(self.encoding)
