"""Waiting for what comes some time after it was asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_SECONDS = 300.0  # what takes seconds on an idle machine, such as the start of ranks, may take minutes


def wait_until(condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """Returns what `condition` gave in the end. Raises TimeoutError where it does not come true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"this did not come true within {seconds:g} s")
        time.sleep(0.01)
    return found
