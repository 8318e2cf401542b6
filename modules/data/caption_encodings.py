"""Detects the text encoding of caption files."""

from __future__ import annotations

import codecs

WESTERN = "cp1252"  # the encoding of Western European Windows, a superset of Latin-1
# UTF-32 first, because its little-endian mark starts with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32", "-LE"),
    (codecs.BOM_UTF32_BE, "UTF-32", "-BE"),
    (codecs.BOM_UTF16_LE, "UTF-16", "-LE"),
    (codecs.BOM_UTF16_BE, "UTF-16", "-BE"),
)


def why_not_utf8(content: bytes) -> str | None:
    """Why the bytes are not UTF-8, as a predicate for a sentence about the file; None if they are.

    A NUL byte is valid UTF-8, but in a caption it means UTF-16 without a byte order mark.
    """
    if encoding := _marked(content):
        return f"is {encoding}, not UTF-8"
    wrong = content.find(b"\0")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = error.start
    return None if wrong < 0 else f"is not UTF-8 ({byte_at(content, wrong)})"


def encoding_of(content: bytes, unmarked: str) -> str:
    """The encoding of a text that is not UTF-8: from its byte order mark or its NUL bytes, else `unmarked`."""
    nul = content.find(b"\0")  # the high byte of an ASCII character in UTF-16; it comes second in little-endian
    return _marked(content) or (unmarked if nul < 0 else "UTF-16-LE" if nul % 2 else "UTF-16-BE")


def split_mark(content: bytes, unmarked: str = WESTERN) -> tuple[bytes, str]:
    """The byte order mark of a text, b"" if it has none, and the encoding of what follows it, "UTF-8" for UTF-8.

    unmarked: as for `encoding_of`.
    """
    for mark, encoding, order in _MARKS:
        if content.startswith(mark):
            return mark, encoding + order
    mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    return mark, "UTF-8" if why_not_utf8(content) is None else encoding_of(content, unmarked)


def byte_at(content: bytes, position: int) -> str:
    return f"byte 0x{content[position]:02x} at {position}"


def _marked(content: bytes) -> str | None:
    return next((encoding for mark, encoding, _ in _MARKS if content.startswith(mark)), None)
