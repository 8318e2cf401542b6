"""Waiting for what comes some time after it was asked for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
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


@contextlib.contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[None]:
    """Context in which `work` runs in a thread, and which waits for its end. Raises what it has raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive(), "it has not ended"
    if errors:
        raise errors[0]
