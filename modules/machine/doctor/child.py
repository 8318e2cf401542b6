"""Child processes of the checks, so that a crash or hang is contained in them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from modules.config.installation import IMPORT_FOLDER
from modules.machine.ChildProcess import ChildProcess


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
    gpu_order = os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # that of devices.py
    child = ChildProcess(folder, {"CUDA_DEVICE_ORDER": gpu_order, "PYTHONUNBUFFERED": "1"})
    child.start(command)
    try:
        done = child.wait(seconds)
    except subprocess.TimeoutExpired as expired:
        return ChildAnswer(None, _text(expired.stdout), _text(expired.stderr))
    return ChildAnswer(done.returncode, _text(done.stdout), _text(done.stderr))


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace").replace("\r\n", "\n")
