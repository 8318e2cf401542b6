"""A program that this process starts, waits for and may end early."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO

END_SECONDS = 5.0


class ChildProcess:
    """A program without a console window on Windows, whose Python writes UTF-8.

    `wait` may take long; `cancel` may be called meanwhile from another thread, or even before `start`.

    folder: its working folder; None: that of this process. variables: added to the environment of this process.
    output: where stdout and stderr go; None: to the result of `wait`. own_session: whether Ctrl-C in this process's
    terminal does not reach it. takes_lines: whether it reads what `say` is called with; else it has no stdin.
    """

    def __init__(
        self,
        folder: str | os.PathLike | None = None,
        variables: Mapping[str, str] | None = None,
        output: IO[bytes] | None = None,
        own_session: bool = False,
        takes_lines: bool = False,
    ):
        self._folder, self._variables = folder, dict(variables or {})
        self._takes_lines = takes_lines
        self._output, self._own_session = output, own_session
        self._lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.is_cancelled = False

    def start(self, command: Sequence[str]) -> bool:
        """Start it, unless it was cancelled; returns whether it did. Raises OSError if the system can't."""
        with self._lock:
            if not self.is_cancelled:
                self.process = subprocess.Popen(
                    command,
                    cwd=self._folder,
                    env={**os.environ, "PYTHONIOENCODING": "utf-8", **self._variables},
                    stdin=subprocess.PIPE if self._takes_lines else subprocess.DEVNULL,
                    stdout=self._output or subprocess.PIPE,
                    stderr=subprocess.STDOUT if self._output else subprocess.PIPE,
                    creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
                    start_new_session=self._own_session and os.name != "nt",
                )
        return self.process is not None

    def adopt(self, process: subprocess.Popen[bytes]) -> bool:
        """Take over a program that is running, with pipes for its output; end it if this was cancelled."""
        with self._lock:
            self.process = process
            if self.is_cancelled:
                process.kill()
        if self.is_cancelled:
            process.communicate()
        return not self.is_cancelled

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def wait(
        self, seconds: float | None = None, heard: Callable[[bytes], None] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Wait for its end; only after `start`, and without `output`.

        seconds: after these it is killed, and TimeoutExpired raised with what it has printed so far; None: no limit.
        heard: called in this thread with each line of stdout as it comes; not together with `seconds`.
        An exception in this thread, such as that of a signal handler, ends it, too.
        """
        process = self.process
        assert process is not None  # `start` was called
        try:
            if heard is None:
                output, errors = process.communicate(timeout=seconds)
            else:
                output, errors = _listen(process, heard)
        except subprocess.TimeoutExpired as expired:
            process.kill()
            raise subprocess.TimeoutExpired(process.args, expired.timeout, *_rest(process)) from None
        except BaseException:
            process.kill()
            process.wait()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def say(self, line: str) -> None:
        """Write a line to its stdin, unless it has ended; only after `start`, and with `takes_lines`."""
        assert self.process is not None  # `start` was called
        assert self.process.stdin is not None  # it takes lines
        with contextlib.suppress(OSError, ValueError):  # it has closed its end, or has ended
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()

    def cancel(self) -> None:
        """Ask it to end (SIGTERM; on Windows it just ends), or keep it from starting."""
        with self._lock:
            self.is_cancelled = True
            if self.process is not None:
                self.process.terminate()

    def end(self) -> None:
        """`cancel`, and wait until it has ended; by force if it takes longer than END_SECONDS."""
        self.cancel()
        if self.process is None:
            return
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _listen(process: subprocess.Popen[bytes], heard: Callable[[bytes], None]) -> tuple[bytes, bytes]:
    assert process.stdout is not None  # both are pipes
    assert process.stderr is not None
    lines: list[bytes] = []
    errors: list[bytes] = []
    reader = threading.Thread(target=errors.extend, args=(process.stderr,), daemon=True)
    reader.start()  # a full pipe of errors would stop the program
    with process:
        try:
            for line in process.stdout:
                lines.append(line)
                heard(line)
        except BaseException:
            process.kill()  # leaving the block waits for its end
            raise
        reader.join()
    return b"".join(lines), b"".join(errors)


def _rest(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """The output of a killed process. Its own children may keep the pipes open, so this does not wait for their end."""
    try:
        return process.communicate(timeout=END_SECONDS)
    except subprocess.TimeoutExpired as expired:
        process.wait()
        return expired.output or b"", expired.stderr or b""
