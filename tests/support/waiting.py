"""Waiting for what comes some time after it was asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_SECONDS = 120.0  # what takes one on an idle machine may take many on a busy one


def wait_until(condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> None:
    """Raises TimeoutError where `condition` does not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"this did not come true within {seconds:g} s")
        time.sleep(0.01)
