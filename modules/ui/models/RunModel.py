"""The run that the window shows: starting it, steering it, following it. Knows nothing of Tk.

A run is a process of its own, which outlives the window: all that passes between the two lies in the run folder.
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
from modules.config.presets import ROOT
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

LOOK_SECONDS = 0.15  # between two looks into the folder
REPEAT_STOP_SECONDS = 3.0  # a run that is just starting sweeps what was asked before
# Signals and the seconds after each. Two that come at once count as one; ranks end with the process above them.
ENDING = ((signal.SIGTERM, 0.5), (signal.SIGTERM, 20.0), (getattr(signal, "SIGKILL", signal.SIGTERM), 20.0))


class RunModel:
    """At most one run: the one started or attached last.

    state: what `poll` has last brought. history: the losses of the run; another object for each run.
    All methods are for one thread, that of the window; what takes long is done in others.
    """

    def __init__(self) -> None:
        self.state = RunState()
        self._history: LossHistory | None = None
        self._reader: RunReader | None = None
        self._shown: RunState | None = None
        self._closed = threading.Event()
        self._asked_to_stop = threading.Event()
        self._listeners: Listeners[[RunState]] = Listeners()

    @property
    def history(self) -> LossHistory:
        if self._history is None:  # made when it is first drawn: it loads numpy, and the window opens without
            self._history = LossHistory()
        return self._history

    @property
    def is_running(self) -> bool:
        return self.state.is_running

    def start(self, config: TrainConfig, resume: bool = False) -> None:
        """Starts a run of `config` in its workspace_dir and follows it.

        resume: goes on from the newest backup there. Raises UserError, with nothing started, for a folder that can't
        be used, is in use, or holds a run that is not to be resumed. Everything later is told by the run itself.
        """
        asked, folder = time.time(), RunFolder(config.workspace_dir)
        with _readable(folder):
            if is_running(folder):
                raise UserError(
                    f"workspace_dir {str(folder.path)!r} is in use by a run that goes on: open it under Runs, or "
                    "choose another folder."
                )
            if not resume:
                folder.refuse_earlier_run()
        folder.create()
        # A resume can still be refused: it must leave the settings of the run as they are. The trainer replaces them.
        settings = folder.log_dir / "resume.yaml" if resume else folder.config_path
        save_config(config, settings)
        self._follow(RunReader(folder, start_supervisor(folder, settings, resume, asked)))

    def attach(self, path: str | os.PathLike, is_running: bool = False) -> None:
        """Shows the run in the folder at `path`, running or not, from its beginning.

        is_running: what is known of that, until the first look at it.
        Raises UserError if there is none, or it can't be read.
        """
        folder = RunFolder(path)
        with _readable(folder):
            has_events = bool(event_files(folder))
        if not has_events:
            raise UserError(f"{str(folder.path)!r} is not the folder of a run: choose one that has a folder 'events'.")
        self._follow(RunReader(folder, is_running=is_running))

    def command(self, name: str) -> None:
        """Asks the run for "sample", "backup", "save" or "stop". Raises UserError where its folder can't be reached."""
        if self._reader is None:
            raise UserError("No run is open: start one, or open one.")
        try:
            send_command(self._reader.folder, name)
        except OSError as error:
            raise UserError(f"{self._reader.folder.commands_dir} can't be written ({error.strerror}).") from error

    def stop(self) -> None:
        """Ends the step, backs up and saves."""
        self.command("stop")
        self._asked_to_stop.set()
        self._show(self.state)

    def force_stop(self) -> None:
        """Ends the processes of the run within seconds, without a backup.

        Raises UserError for a run of another machine, whose processes can't be reached.
        """
        reader = self._reader
        if reader is None or not self.state.is_running:
            return
        self._asked_to_stop.set()
        pid = holder_here(reader.folder.lock_path) or reader.starting_pid()
        if pid is None:
            raise UserError("The run goes on on another machine: stop it there, or wait for its stop.")
        threading.Thread(target=_end, args=(reader, pid), name="force stop", daemon=True).start()
        self._show(self.state)

    def poll(self) -> None:
        """Takes what the reading thread has found since the last call, and tells the listeners if it is new."""
        if self._reader is not None and self._reader.state is not self._shown:
            self._shown = self._reader.state
            if not self._shown.is_running:
                self._asked_to_stop.clear()
            self._show(self._shown)

    def subscribe(self, listener: Callable[[RunState], None]) -> Callable[[], None]:
        """Calls `listener` with every new state, from `poll`. Returns what ends it."""
        return self._listeners.add(listener)

    def log_since(self, number: int) -> tuple[list[LogLine], int]:
        """The log's lines after the first `number`, as far as they are kept, and how many there are by now."""
        return ([], 0) if self._reader is None else self._reader.log_since(number)

    def close(self) -> None:
        """Follows no run any more. One that runs goes on."""
        self._closed.set()

    def _follow(self, reader: RunReader) -> None:
        self._closed.set()
        self._closed, self._asked_to_stop = threading.Event(), threading.Event()
        self._reader, self._history, self._shown = reader, reader.history, reader.state
        arguments = (reader, self._closed, self._asked_to_stop)
        threading.Thread(target=_read, args=arguments, name="run reader", daemon=True).start()
        self._show(self._shown)  # not what the thread has read by now: whoever has called would speak after it

    def _show(self, state: RunState) -> None:
        stopping = state.is_running and self._asked_to_stop.is_set()
        self.state = dataclasses.replace(state, is_stopping=stopping)
        self._listeners.tell(self.state)


def start_supervisor(folder: RunFolder, settings: Path, resume: bool, asked: float) -> subprocess.Popen:
    """scripts/train.py in a session of its own, which goes on when the window is closed, killed or logged out.

    asked: Unix time since when commands are for this run, which sees them only when it has loaded its libraries.
    Raises UserError where its log can't be written, or the system makes no more processes.
    """
    script = str(ROOT / "scripts" / "train.py")
    command = [sys.executable, script, "--supervise", "--config", str(settings), *(["--resume"] if resume else [])]
    # the log is read as UTF-8, which is not what Windows writes into files
    environment = {**os.environ, STARTED_VARIABLE: repr(asked), "PYTHONIOENCODING": "utf-8:backslashreplace"}
    if os.name == "nt":  # with a console that nobody sees: without any, each process below it would open a black window
        apart = {"creationflags": subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP}
    else:
        apart = {"start_new_session": True}
    try:
        log = folder.window_log_path.open("ab")
    except OSError as error:
        raise UserError(
            f"{folder.window_log_path} can't be written ({error.strerror}): remove it, or choose another folder."
        ) from error
    with log:
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        try:
            return subprocess.Popen(command, env=environment, **streams, **apart)
        except OSError as error:
            raise UserError(
                f"The run can't be started ({error.strerror}): close other programs, or, if {sys.executable} is gone, "
                "set up Chorus again."
            ) from error


@contextlib.contextmanager
def _readable(folder: RunFolder) -> Iterator[None]:
    """UserError for what the disk refuses within the block."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"workspace_dir {str(folder.path)!r} can't be read ({error.strerror}): look after its disk and its "
            "permissions, or choose another folder."
        ) from error


def _read(reader: RunReader, closed: threading.Event, asked_to_stop: threading.Event) -> None:
    stop_due = 0.0
    while not closed.is_set():
        if reader.look():
            time.sleep(0)  # a long run is read as fast as it goes, but the window goes first
            continue
        closed.wait(LOOK_SECONDS)
        if asked_to_stop.is_set() and reader.state.is_running and time.monotonic() >= stop_due:
            stop_due = time.monotonic() + REPEAT_STOP_SECONDS
            reader.repeat_stop()


def _end(reader: RunReader, pid: int) -> None:
    """By signal, by a second one, by force; and puts down that it was wanted, where the run has not done so."""
    for number, seconds in ENDING:
        with contextlib.suppress(OSError):  # it is gone, which Windows says in several ways, or another's
            os.kill(pid, number)
        if _is_gone(reader, pid, seconds):
            break
    reader.note_forced_end()


def _is_gone(reader: RunReader, pid: int, seconds: float) -> bool:
    """Whether it is within `seconds`. Only while it holds the lock of the folder is it certain whose number that is."""
    deadline = time.monotonic() + seconds
    while pid in (holder_here(reader.folder.lock_path), reader.starting_pid()):
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True
