"""Runs another program of this checkout, as a check that waits for its end."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from modules.config.installation import ROOT


def run_program(command: Sequence[str], seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    """What it said, and its exit code. Raises subprocess.TimeoutExpired if it takes longer than `seconds`."""
    return subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=seconds,
        check=False,
    )
