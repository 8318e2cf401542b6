"""Print to a terminal or log file with control and invisible characters escaped.

A test makes every module use these functions wherever it prints more than a constant text.
"""

from __future__ import annotations

from typing import TextIO

from modules.config.visible_text import visible_line, visible_text


def print_line(text: object, file: TextIO | None = None) -> None:
    """Print a single line, to stdout if `file` is None; line breaks in it are escaped."""
    print(visible_line(str(text)), file=file, flush=True)


def print_text(text: object, file: TextIO | None = None) -> None:
    """Print a text of several lines, such as a traceback or lines that each went through `visible_line`."""
    print(visible_text(str(text)), file=file, flush=True)
