"""The run that the window shows: start it, send it commands and follow it. No Tk.

A run is a separate process that outlives the window; the two communicate through the run folder only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.errors import UserError
from modules.config.files import save_config
from modules.config.installation import ROOT
from modules.config.own_file import open_own
from modules.machine.own_session import own_session
from modules.session.FolderCommands import STARTED_VARIABLE, send_command
from modules.session.following import event_files, is_running
from modules.session.RunFolder import RunFolder
from modules.session.RunLock import holder_here
from modules.ui.models.Listeners import Listeners
from modules.ui.models.LossHistory import LossHistory
from modules.ui.models.RunReader import RunReader
from modules.ui.models.RunState import LogLine, RunState

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.ui.models.StandbyKeeper import TakeStandby

LOOK_SECONDS = 0.15  # between two reads of the folder
REPEAT_STOP_SECONDS = 3.0  # a starting run removes older commands
# Signals, with the seconds to wait after each: two at once would count as one. Ranks end with the supervisor.
ENDING = ((signal.SIGTERM, 0.5), (signal.SIGTERM, 20.0), (getattr(signal, "SIGKILL", signal.SIGTERM), 20.0))


class RunModel:
    """The run that was started or attached last, if any.

    standby: as for `start_supervisor`. state: as of the last `poll`. history: the losses of the run, a new object for
    each run.
    All methods are called in the window's thread; slow work is done in others.
    """

    def __init__(self, standby: TakeStandby | None = None) -> None:
        self.state = RunState()
        self._standby = standby
        self._history: LossHistory | None = None
        self._reader: RunReader | None = None
        self._shown: RunState | None = None
        self._closed = threading.Event()
        self._asked_to_stop = threading.Event()
        self._ending: threading.Thread | None = None  # ends a run by force
        self._listeners: Listeners[[RunState]] = Listeners()

    @property
    def history(self) -> LossHistory:
        if self._history is None:  # created when first drawn, because importing numpy would delay the window's opening
            self._history = LossHistory()
        return self._history

    @property
    def is_running(self) -> bool:
        return self.state.is_running

    def start(self, config: TrainConfig, resume: bool = False) -> None:
        """Start a run of `config` in its workspace_dir and follow it.

        resume: resume from the newest backup there. Raises UserError, with nothing started, if the folder can't be
        used, is in use, or holds a run that is not to be resumed. Any later problem is reported by the run itself.
        """
        asked, folder = time.time(), RunFolder(config.workspace_dir)
        with _readable(folder):
            if is_running(folder):
                raise UserError.at(
                    "workspace_dir",
                    f"{str(folder.path)!r} is in use by another run: open it under Runs, or choose another folder.",
                )
            if not resume:
                folder.refuse_earlier_run()
        folder.create()
        # Not for a resume, which may still be refused and must then leave the run's settings unchanged. The trainer
        # replaces them later.
        settings = folder.resume_config_path if resume else folder.config_path
        save_config(config, settings, keeps_link=False)
        self._follow(RunReader(folder, start_supervisor(folder, settings, resume, asked, self._standby)))

    def attach(self, path: str | os.PathLike, is_running: bool = False) -> None:
        """Show the run in the folder at `path`, running or not, from its beginning.

        is_running: what is known about that, until it is first read.
        Raises UserError if there is no run or it can't be read.
        """
        folder = RunFolder(path)
        with _readable(folder):
            has_events = bool(event_files(folder))
        if not has_events:
            raise UserError(f"{str(folder.path)!r} is not the folder of a run: choose one that has a folder 'events'.")
        self._follow(RunReader(folder, is_running=is_running))

    def command(self, name: str) -> None:
        """Send the command "sample", "backup", "save" or "stop". Raises UserError if the folder can't be written."""
        if self._reader is None:
            raise UserError("No run is open: start one, or open one.")
        try:
            send_command(self._reader.folder, name)
        except OSError as error:
            raise UserError(f"{self._reader.folder.commands_dir} can't be written ({error.strerror}).") from error

    def stop(self) -> None:
        """Ask the run to stop within two steps, back up and save."""
        self.command("stop")
        self._asked_to_stop.set()
        self._show(self.state)

    def force_stop(self) -> None:
        """End the processes of the run within seconds, without a backup.

        Raises UserError for a run on another machine, whose processes can't be reached.
        """
        reader = self._reader
        if reader is None or not self.state.is_running:
            return
        self._asked_to_stop.set()
        pid = holder_here(reader.folder.lock_path) or reader.starting_pid()
        if pid is None:
            raise UserError("The run is on another machine: stop it there, or wait until it stops.")
        self._ending = threading.Thread(target=_end, args=(reader, pid), name="force stop", daemon=True)
        self._ending.start()
        self._show(self.state)

    def poll(self) -> None:
        """Take what the reading thread has found since the last call, and notify the listeners if it has changed."""
        if self._reader is not None and self._reader.state is not self._shown:
            self._shown = self._reader.state
            if not self._shown.is_running:
                self._asked_to_stop.clear()
            self._show(self._shown)

    def subscribe(self, listener: Callable[[RunState], None]) -> Callable[[], None]:
        """Call `listener` with every new state, from `poll`. Returns a function that unsubscribes."""
        return self._listeners.add(listener)

    def log_since(self, number: int) -> tuple[list[LogLine], int]:
        """The log's lines after the first `number`, as far as they are kept, and the number of lines so far."""
        return ([], 0) if self._reader is None else self._reader.log_since(number)

    def close(self) -> None:
        """Stop following the run, which continues."""
        self._closed.set()

    def finish(self, seconds: float) -> None:
        """Wait so long at most until a run that is ended by force has got the signals for it."""
        if self._ending is not None:
            self._ending.join(seconds)

    def _follow(self, reader: RunReader) -> None:
        self._closed.set()
        self._closed, self._asked_to_stop = threading.Event(), threading.Event()
        self._reader, self._history, self._shown = reader, reader.history, reader.state
        arguments = (reader, self._closed, self._asked_to_stop)
        threading.Thread(target=_read, args=arguments, name="run reader", daemon=True).start()
        self._show(self._shown)  # not what the thread has read since: listeners must not run ahead of the caller

    def _show(self, state: RunState) -> None:
        stopping = state.is_running and self._asked_to_stop.is_set()
        self.state = dataclasses.replace(state, is_stopping=stopping)
        self._listeners.tell(self.state)


def start_supervisor(
    folder: RunFolder, settings: Path, resume: bool, asked: float, standby: TakeStandby | None = None
) -> subprocess.Popen:
    """Run scripts/train.py in a new session, which survives closing or killing the window and logging out.

    asked: Unix time; later commands are for this run, which reads them once it has loaded its libraries.
    standby: gives a process that is as good as a new one, if there is any.
    Raises UserError if its log can't be written, or the system can't create a process.
    """
    arguments = ["--supervise", "--config", str(settings), *(["--resume"] if resume else [])]
    try:
        log = open_own(folder.window_log_path, "ab")
    except OSError as error:
        raise UserError(
            f"{folder.window_log_path} can't be written ({error.strerror}): remove it, or choose another folder."
        ) from error
    with log:
        variables = {STARTED_VARIABLE: repr(asked)}
        waiting = standby("train", "train.py", arguments, variables, folder.window_log_path) if standby else None
        if waiting is not None:
            return waiting
        # the log is read as UTF-8, which is not the default on Windows
        environment = {**os.environ, **variables, "PYTHONIOENCODING": "utf-8:backslashreplace"}
        try:
            return subprocess.Popen(
                [sys.executable, str(ROOT / "scripts" / "train.py"), *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                **own_session(),
            )
        except OSError as error:
            raise UserError(
                f"The run can't be started ({error.strerror}): close other programs, or, if {sys.executable} is gone, "
                "set up Chorus again."
            ) from error


@contextlib.contextmanager
def _readable(folder: RunFolder) -> Iterator[None]:
    """Turn OSErrors in the block into UserErrors."""
    try:
        yield
    except OSError as error:
        raise UserError.at(
            "workspace_dir",
            f"{str(folder.path)!r} can't be read ({error.strerror}): check its disk and its "
            "permissions, or choose another folder.",
        ) from error


def _read(reader: RunReader, closed: threading.Event, asked_to_stop: threading.Event) -> None:
    stop_due = 0.0
    while not closed.is_set():
        if reader.look():
            time.sleep(0)  # a long run is read as fast as possible, but the window has priority
            continue
        closed.wait(LOOK_SECONDS)
        if asked_to_stop.is_set() and reader.state.is_running and time.monotonic() >= stop_due:
            stop_due = time.monotonic() + REPEAT_STOP_SECONDS
            reader.repeat_stop()


def _end(reader: RunReader, pid: int) -> None:
    """End the run by one signal, a second one, then by force; record that if the run could not do so itself."""
    for number, seconds in ENDING:
        with contextlib.suppress(OSError):  # already gone, which Windows reports in several ways, or not our process
            os.kill(pid, number)
        if _is_gone(reader, pid, seconds):
            break
    reader.note_forced_end()


def _is_gone(reader: RunReader, pid: int, seconds: float) -> bool:
    """Wait up to `seconds` for the process to end. Its id is only certain while it holds the folder's lock."""
    deadline = time.monotonic() + seconds
    while pid in (holder_here(reader.folder.lock_path), reader.starting_pid()):
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True
