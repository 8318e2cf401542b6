"""The check of the data as a process of its own: it reads every picture, and knows the model families. No Tk."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.errors import UserError
from modules.config.files import save_config
from modules.config.presets import ROOT

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

SCRIPT = ROOT / "scripts" / "check_data.py"
LAST_LETTERS = 500  # of what a failed check has said


@dataclass(frozen=True)
class DataFinding:
    """One kind of thing found. level: "error" where training would fail, "warning" or "note". paths: of the first."""

    kind: str
    level: str
    message: str
    count: int
    paths: tuple[str, ...]


@dataclass(frozen=True)
class DataReport:
    """num_pictures: that can be read. findings: the errors first."""

    can_train: bool
    num_pictures: int
    findings: tuple[DataFinding, ...]


class DataCheck:
    """One check of the settings' pictures and captions. `run` takes its time, `cancel` may be called meanwhile.

    num_ranks: GPUs that will train together. decode: whether every picture is read to its end.
    """

    def __init__(self, config: TrainConfig, num_ranks: int = 1, decode: bool = False):
        self._config = config
        self._options = ["--json", "--ranks", str(num_ranks), *(["--decode"] if decode else [])]
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._is_cancelled = False

    def run(self) -> DataReport | None:
        """What was found, None if it was cancelled. Raises UserError if the check can't be made."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.yaml"
            save_config(self._config, path)
            with self._lock:
                if self._is_cancelled:
                    return None
                self._process = subprocess.Popen(
                    [sys.executable, str(SCRIPT), "--config", str(path), *self._options],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
                )
            output, errors = self._process.communicate()
        if self._is_cancelled:
            return None
        if self._process.returncode not in (0, 1):
            text = errors.decode("utf-8", "replace").strip()[-LAST_LETTERS:]
            raise UserError(text or f"the check of the data ended with exit code {self._process.returncode}.")
        return _read_report(output)

    def cancel(self) -> None:
        """End the check; `run` then returns None."""
        with self._lock:
            self._is_cancelled = True
            if self._process is not None:
                self._process.terminate()


def _read_report(output: bytes) -> DataReport:
    values = json.loads(output)
    findings = tuple(DataFinding(**{**one, "paths": tuple(one["paths"])}) for one in values["findings"])
    return DataReport(values["can_train"], values["num_pictures"], findings)
