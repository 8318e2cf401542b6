"""Make foreign text, such as file names, captions and errors of libraries, safe to print, log and display.

A file name can clear or retitle a terminal, inject a fake line, or display itself backwards. Such characters are
replaced by visible escapes. Use it for output only, never for a path or prompt that is used further.
"""

from __future__ import annotations

import re

# Fixed ranges, not Unicode categories: those include visible Arabic signs and change with the version of Python.
_HIDDEN = re.compile(
    "\U0001f3f4[\U000e0020-\U000e007e]+\U000e007f"  # kept: the flag of a region, such as Scotland, is spelled like this
    "|[\x00-\x1f\x7f-\x9f"  # control characters, including line feeds
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # text direction marks and Unicode's line separators
    "\u00ad\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e007f"
    "\ud800-\udfff]"  # lone surrogates, as in undecodable file names
    # Joiners, unless they follow a non-ASCII character: Persian and Indic words and many emoji need those.
    "|(?<![^\x00-\x7f])[\u200c\u200d]"
)


def visible_line(text: str) -> str:
    r"""`text` on one line, with control characters and invisible formatting escaped (a line feed becomes `\n`).

    For everything that should be a single line, such as a name, a sentence or a warning. Ordinary text in any language
    is unchanged.
    """
    return _HIDDEN.sub(_escape, text)


def visible_text(text: str) -> str:
    """As `visible_line`, but keeps line feeds and tabs, for text of several lines such as a traceback.

    A line feed in a file name can't be told from a line end here, so pass each line that contains a file name through
    `visible_line` before joining the lines.
    """
    return _HIDDEN.sub(lambda match: match[0] if match[0] in "\n\t" else _escape(match), text.replace("\r\n", "\n"))


def find_hidden(text: str) -> int | None:
    """The index of the first character that `visible_line` would escape; None if there is none."""
    return next((match.start() for match in _HIDDEN.finditer(text) if _escape(match) != match[0]), None)


def _escape(match: re.Match[str]) -> str:
    hidden = match[0]
    return hidden if len(hidden) > 1 else hidden.encode("unicode_escape").decode("ascii")
