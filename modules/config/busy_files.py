"""Wait for files that another process has open: Windows refuses to rename, replace or delete them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FILE_SECONDS = 2.0  # for one of our readers, or a virus scanner on a small file
LARGE_SECONDS = 60.0  # for a virus scanner or cloud client that reads gigabytes just written

_FILES_GET_BUSY = os.name == "nt"


def retry_busy(action: Callable[[], T], seconds: float = FILE_SECONDS) -> T:
    """The result of `action()`, retried for up to `seconds` while Windows refuses it.

    Raises the last PermissionError. On other systems there are no retries: POSIX permissions do not change by waiting.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return action()
        except PermissionError:
            if not _FILES_GET_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.02)
