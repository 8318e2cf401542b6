"""Log files, which a full disk may leave incomplete but which never fail the run."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO


@contextlib.contextmanager
def log_file(path: Path) -> Iterator[TextIO]:
    """The text file at `path`, for further lines, which are on the disk at once. Raises OSError if it can't be opened.

    Lines that a full disk refuses raise OSError when they are written, and are given up when the block ends.
    """
    # backslashreplace: a file name that is no text must not end the run that tells of it
    file = path.open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):  # what the disk has refused is still in the buffer
            file.close()
