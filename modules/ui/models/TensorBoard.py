"""TensorBoard in a separate process, for the curves of a run. No Tk."""

from __future__ import annotations

import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from modules.config.errors import UserError
from modules.machine.ChildProcess import ChildProcess

START_SECONDS = 60.0
SAID_LINES = 3
STOPPED = "TensorBoard was closed: open it again."


class TensorBoard:
    """A server that listens on this machine only. Call `start`, which takes seconds, in a thread; `stop` is final.

    command: the command that starts it, for tests.
    """

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", "tensorboard.main")):
        self._command = list(command)
        self._lock = threading.Lock()
        self._child: ChildProcess | None = None
        self._is_stopped = False
        self._folder: Path | None = None
        self._url = ""

    def start(self, folder: Path) -> str:
        """Start a server for the curves in `folder`, unless it is already running. Returns its URL.

        Raises UserError if there are no curves, or TensorBoard does not start.
        """
        try:
            has_curves = folder.is_dir() and any(folder.iterdir())
        except OSError as error:
            raise UserError(f"{folder} can't be read: {error.strerror}; allow reading it.") from error
        if not has_curves:
            raise UserError(
                f"{folder} holds no curves: they begin with the first step of a run that has tensorboard switched on."
            )
        with self._lock:
            if self._folder == folder and self._child is not None and self._child.is_running:
                return self._url
            self._end()
            self._url = self._start(folder)
            self._folder = folder
            return self._url

    def stop(self) -> None:
        self._is_stopped = True  # also cancels a start that is waiting for the lock or comes later
        child = self._child
        if child is not None:
            child.cancel()  # even while another thread waits for it to start
        with self._lock:
            self._end()

    def _start(self, folder: Path) -> str:
        if self._is_stopped:
            raise UserError(STOPPED)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        with tempfile.TemporaryFile() as said:
            child = self._child = ChildProcess(output=said)
            child.start([*self._command, "--logdir", str(folder), "--host", "127.0.0.1", "--port", str(port)])
            deadline = time.monotonic() + START_SECONDS
            while not _answers(port):
                if self._is_stopped:
                    self._end()
                    raise UserError(STOPPED)
                if not child.is_running or time.monotonic() > deadline:
                    self._end()
                    said.seek(0)
                    lines = said.read().decode("utf-8", "replace").strip().splitlines()[-SAID_LINES:]
                    raise UserError(f"TensorBoard failed to start ({' '.join(lines) or 'no output'}).")
                time.sleep(0.1)
        return f"http://127.0.0.1:{port}/"

    def _end(self) -> None:
        child, self._child, self._folder = self._child, None, None
        if child is not None:
            child.end()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.5):
            return True
    except OSError:
        return False
