"""What the bytes of a caption file say of its encoding."""

from __future__ import annotations

import codecs

# UTF-32 first: its little-endian mark begins like that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


def why_not_utf8(content: bytes) -> str | None:
    """How the bytes show that a text is not UTF-8, as the end of a sentence about its file; None where it is.

    A NUL, which UTF-8 has too, is in no caption: it comes from UTF-16 without a byte order mark.
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
    """The encoding of a text that is not UTF-8: by its byte order mark, by its NULs, else `unmarked`."""
    nul = content.find(b"\0")  # in UTF-16 the upper half of a letter of English: little-endian, it comes second
    return _marked(content) or (unmarked if nul < 0 else "UTF-16-LE" if nul % 2 else "UTF-16-BE")


def byte_at(content: bytes, position: int) -> str:
    return f"byte 0x{content[position]:02x} at {position}"


def _marked(content: bytes) -> str | None:
    return next((encoding for mark, encoding in _MARKS if content.startswith(mark)), None)
