"""Waiting for files that another process has open, which Windows does not let anybody rename, replace or delete."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FILE_SECONDS = 2.0  # for a reader of ours, or a virus scanner at a small file
LARGE_SECONDS = 60.0  # for a virus scanner or a cloud service that reads gigabytes which have just been written

_FILES_GET_BUSY = os.name == "nt"


def retry_busy(action: Callable[[], T], seconds: float = FILE_SECONDS) -> T:
    """What `action()` gives, which is tried for `seconds` while Windows refuses it.

    Raises the last PermissionError. Elsewhere nothing is tried twice: POSIX refuses for reasons that stay.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return action()
        except PermissionError:
            if not _FILES_GET_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.02)
