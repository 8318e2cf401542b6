"""Text of others, such as file names, captions and errors of libraries, made safe to print, log and show.

A file may be named so that it retitles or clears a terminal, adds a line that nobody wrote, or shows its own name
backwards. Here such characters become visible escapes. Only what is shown is changed, never a path or a prompt in use.
"""

from __future__ import annotations

import re

# Fixed ranges, not Unicode categories: those contain visible signs of Arabic, and change with Python's version.
_HIDDEN = re.compile(
    "\U0001f3f4[\U000e0020-\U000e007e]+\U000e007f"  # kept: the flag of a region, such as Scotland, is spelled like this
    "|[\x00-\x1f\x7f-\x9f"  # control characters, line feeds among them
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # direction of writing, and Unicode's own line ends
    "\u00ad\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e007f"
    "\ud800-\udfff]"  # halves of characters, as in file names that are not Unicode
    # The joiners that Persian and Indic words and many emoji are spelled with follow a character beyond ASCII.
    "|(?<![^\x00-\x7f])[\u200c\u200d]"
)


def visible_line(text: str) -> str:
    r"""`text` on one line: control characters and invisible formatting become escapes, a line feed `\n`.

    For everything that is one line by its meaning, such as a name, a sentence or a warning. Ordinary text in any
    language stays as it is.
    """
    return _HIDDEN.sub(_escape, text)


def visible_text(text: str) -> str:
    """As `visible_line`, for a text of several lines, such as a traceback: line feeds and tabs stay.

    A line feed in a file name can't be told from the end of a line here: each line that names a file goes through
    `visible_line` before the lines are joined.
    """
    return _HIDDEN.sub(lambda match: match[0] if match[0] in "\n\t" else _escape(match), text.replace("\r\n", "\n"))


def find_hidden(text: str) -> int | None:
    """The place of the first character that `visible_line` would escape; None where there is none."""
    return next((match.start() for match in _HIDDEN.finditer(text) if _escape(match) != match[0]), None)


def _escape(match: re.Match[str]) -> str:
    hidden = match[0]
    return hidden if len(hidden) > 1 else hidden.encode("unicode_escape").decode("ascii")
