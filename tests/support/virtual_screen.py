"""Displays that nobody looks at, by Xvfb."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

END_SECONDS = 60


@contextlib.contextmanager
def virtual_screen() -> Iterator[str]:
    """The name of a display."""
    if shutil.which("Xvfb") is None:
        missing("there is no display, and Xvfb is not installed")
    reading, writing = os.pipe()
    # -noreset: it would begin anew when its last window closes, and refuse the next one meanwhile.
    # -r: on a busy machine a key may be down for so long that it would repeat.
    command = ["Xvfb", "-displayfd", str(writing), "-screen", "0", "1920x1200x24", "-nolisten", "tcp", "-noreset", "-r"]
    server = subprocess.Popen(command, pass_fds=[writing], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(writing)
    with os.fdopen(reading) as answer:
        number = answer.readline().strip()  # Xvfb writes it when clients can come
    if not number:
        missing("Xvfb did not start")
    try:
        yield f":{number}"
    finally:
        server.terminate()
        server.wait(END_SECONDS)


def missing(reason: str) -> None:
    """Skips the test, or fails it where REQUIRE_GUI_TESTS=1 asks for a display and what belongs to it."""
    if os.environ.get("REQUIRE_GUI_TESTS") == "1":
        pytest.fail(f"REQUIRE_GUI_TESTS=1, but {reason}")
    pytest.skip(reason)
