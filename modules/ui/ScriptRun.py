"""A script of Chorus that looks at the settings, in a process of its own. No Tk."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.errors import UserError
from modules.config.files import save_config
from modules.config.presets import ROOT

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

LAST_LETTERS = 500  # of what a script that failed has said


class ScriptRun:
    """`scripts/NAME --config SETTINGS OPTIONS`, once. `run` takes its time, `cancel` may be called meanwhile."""

    def __init__(self, name: str, config: TrainConfig, options: Sequence[str]):
        self._name = name
        self._config = config
        self._options = list(options)
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._is_cancelled = False

    def run(self) -> bytes | None:
        """What it has printed, None if it was cancelled. Raises UserError unless it ends with 0, or with 1 and a word:
        that is what Python itself ends with, too."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.yaml"
            save_config(self._config, path)
            with self._lock:
                if self._is_cancelled:
                    return None
                self._process = subprocess.Popen(
                    [sys.executable, str(ROOT / "scripts" / self._name), "--config", str(path), *self._options],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
                )
            output, errors = self._process.communicate()
        if self._is_cancelled:
            return None
        if self._process.returncode not in (0, 1) or not output:
            text = errors.decode("utf-8", "replace").strip()[-LAST_LETTERS:]
            raise UserError(text or f"{self._name} ended with exit code {self._process.returncode}.")
        return output

    def cancel(self) -> None:
        """End it; `run` then returns None."""
        with self._lock:
            self._is_cancelled = True
            if self._process is not None:
                self._process.terminate()
