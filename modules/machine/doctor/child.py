"""Child processes of the checks, so that a crash or hang is contained in them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from modules.config.installation import IMPORT_FOLDER


@dataclass(frozen=True)
class ChildAnswer:
    """code: its exit code; None if it was killed after its time limit."""

    code: int | None
    output: str
    errors: str

    @property
    def last_words(self) -> str:
        """The last non-empty line of its output, preferring stderr; without a full stop."""
        lines = [line.strip() for text in (self.errors, self.output) for line in text.splitlines()[::-1]]
        return next((line.rstrip(".") for line in lines if line), f"it ended with exit code {self.code}")


def run_child(command: Sequence[str], seconds: float, folder: str | os.PathLike = IMPORT_FOLDER) -> ChildAnswer:
    """Run `command` in `folder` for at most `seconds`, without stdin."""
    env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **os.environ, "PYTHONUNBUFFERED": "1"}  # GPUs in the order of devices.py
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            encoding="utf-8",
            errors="replace",
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except subprocess.TimeoutExpired as expired:
        return ChildAnswer(None, _text(expired.stdout), _text(expired.stderr))
    return ChildAnswer(done.returncode, done.stdout, done.stderr)


def _text(data: bytes | str | None) -> str:
    """The output of a child that was killed: on POSIX it is bytes even in text mode."""
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else data or ""
