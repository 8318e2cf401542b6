"""A script of Chorus, run in a separate process. No Tk."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.errors import UserError
from modules.config.files import save_config
from modules.config.installation import ROOT

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

LAST_LETTERS = 500  # shown of the last line of a failed script, which is its error message


class ScriptRun:
    """One run of `scripts/NAME --config SETTINGS OPTIONS`. `run` may take long; `cancel` may be called meanwhile.

    config: the settings; None: the script takes none. exit_codes: those of a script with a valid result. seconds: time
    limit; None: none.
    """

    def __init__(
        self,
        name: str,
        config: TrainConfig | None,
        options: Sequence[str],
        exit_codes: Sequence[int] = (0, 1),
        seconds: float | None = None,
    ):
        self._name = name
        self._config = config
        self._options = list(options)
        self._exit_codes, self._seconds = tuple(exit_codes), seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._is_cancelled = False

    def run(self) -> bytes | None:
        """The output of the script; None if it was cancelled.

        Raises UserError if it takes too long, ends with another exit code, or prints nothing (an uncaught exception in
        Python also exits with 1).
        """
        with tempfile.TemporaryDirectory() as folder:
            options = self._options
            if self._config is not None:
                path = Path(folder) / "config.yaml"
                save_config(self._config, path)
                options = ["--config", str(path), *options]
            with self._lock:
                if self._is_cancelled:
                    return None
                process = self._process = subprocess.Popen(
                    [sys.executable, str(ROOT / "scripts" / self._name), *options],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={**os.environ, "PYTHONIOENCODING": "utf-8"},
                    creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
                )
            output, errors = self._wait(process)
        if self._is_cancelled:
            return None
        if process.returncode not in self._exit_codes or not output:
            lines = errors.decode("utf-8", "replace").strip().splitlines()
            text = lines[-1][-LAST_LETTERS:] if lines else ""
            raise UserError(text or f"{self._name} ended with exit code {process.returncode}.")
        return output

    def cancel(self) -> None:
        """End it; `run` then returns None."""
        with self._lock:
            self._is_cancelled = True
            if self._process is not None:
                self._process.terminate()

    def _wait(self, process: subprocess.Popen) -> tuple[bytes, bytes]:
        try:
            return process.communicate(timeout=self._seconds)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise UserError(f"{self._name} took longer than {self._seconds:.0f} seconds: check the disks.") from error
