"""Printing for people, to a terminal or a log file: nothing that is printed acts on a terminal or hides in it.

A test holds every module to these functions wherever more than a fixed text is printed.
"""

from __future__ import annotations

from typing import TextIO

from modules.config.visible_text import visible_line, visible_text


def print_line(text: object, file: TextIO | None = None) -> None:
    """Print what is one line by its meaning, on stdout if `file` is None: a name in it can't begin another one."""
    print(visible_line(str(text)), file=file, flush=True)


def print_text(text: object, file: TextIO | None = None) -> None:
    """Print a text of several lines: a UserError, a traceback, lines that went through `visible_line` each."""
    print(visible_text(str(text)), file=file, flush=True)
