"""A script of Chorus, run in a separate process. No Tk."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from modules.annotators.Cancellation import CANCEL
from modules.config.errors import UserError
from modules.config.files import save_config
from modules.config.installation import ROOT
from modules.machine.ChildProcess import ChildProcess

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.ui.models.StandbyKeeper import TakeStandby

END_SECONDS = 10.0  # after which a script that was asked to end is ended
LAST_LETTERS = 500  # shown of the last line of a failed script, which is its error message


class ScriptRun:
    """One run of `scripts/NAME --config SETTINGS OPTIONS`. `run` may take long; `cancel` may be called meanwhile.

    config: the settings; None: the script takes none. exit_codes: those of a script with a valid result. seconds: time
    limit; None: none. standby: gives a process that is as good as a new one, if there is any. heard: called in the
    thread of `run` with each line of the output as it comes; not together with `seconds`. listens: whether the script
    takes --listen, so that it can clean up when it is cancelled.
    """

    def __init__(
        self,
        name: str,
        config: TrainConfig | None,
        options: Sequence[str],
        exit_codes: Sequence[int] = (0, 1),
        seconds: float | None = None,
        standby: TakeStandby | None = None,
        heard: Callable[[str], None] | None = None,
        listens: bool = False,
    ):
        self.warnings = ""  # what a script that has succeeded said beside its output
        self._heard = heard
        self._name = name
        self._config = config
        self._options = [*options, *(["--listen"] if listens else [])]
        self._exit_codes, self._seconds = tuple(exit_codes), seconds
        self._standby = standby
        self._listens, self._is_cancelled = listens, False
        self._child = ChildProcess(takes_lines=listens)

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
            if not self._start(options):
                return None
            done = self._wait()
        if self._is_cancelled:
            return None
        if done.returncode not in self._exit_codes or not done.stdout:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            text = lines[-1][-LAST_LETTERS:] if lines else ""
            raise UserError(text or f"{self._name} ended with exit code {done.returncode}.")
        self.warnings = done.stderr.decode("utf-8", "replace").strip()
        return done.stdout

    def cancel(self) -> None:
        """End it; `run` then returns None."""
        self._is_cancelled = True
        if not self._listens or not self._child.is_running:
            self._child.cancel()
            return
        self._child.say(CANCEL)
        timer = threading.Timer(END_SECONDS, self._child.end)
        timer.daemon = True
        timer.start()

    def _start(self, options: Sequence[str]) -> bool:
        if self._standby is not None and not self._child.is_cancelled:
            waiting = self._standby("sample", self._name, options)
            if waiting is not None:
                return self._child.adopt(waiting)
        return self._child.start([sys.executable, str(ROOT / "scripts" / self._name), *options])

    def _wait(self) -> subprocess.CompletedProcess[bytes]:
        heard = self._heard
        try:
            if heard is not None:
                return self._child.wait(heard=lambda line: heard(line.decode("utf-8", "replace").rstrip("\r\n")))
            return self._child.wait(self._seconds)
        except subprocess.TimeoutExpired as error:
            raise UserError(f"{self._name} took longer than {self._seconds:.0f} seconds: check the disks.") from error
