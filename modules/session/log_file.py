"""Log files, which may stay incomplete on a full disk but never make the run fail."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO, cast

from modules.config.own_file import open_own


@contextlib.contextmanager
def log_file(path: Path) -> Iterator[TextIO]:
    """Open the text file at `path` for appending, line-buffered. Raises OSError if it can't be opened.

    Writing to a full disk raises OSError; lines still unwritten when the block ends are dropped.
    """
    # backslashreplace: an undecodable file name must not end the run that logs it
    file = cast(TextIO, open_own(path, "a", encoding="utf-8", errors="backslashreplace", buffering=1))
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):  # the buffer still holds what the disk refused
            file.close()
