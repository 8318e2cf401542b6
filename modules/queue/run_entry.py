"""The process of one entry of the queue: it claims the entry, trains it, and notes how that ended.

It is the supervisor of the run, so the entry stays claimed exactly as long as somebody trains it. It outlives the queue
that started it, and obeys the entry's files by itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.errors import UserError
from modules.config.files import save_config
from modules.queue.entry_events import End, append_event
from modules.queue.gpus import with_gpus
from modules.queue.ProcessLock import ProcessLock, boot_id
from modules.queue.QueueEntry import QueueEntry, read_entry
from modules.queue.run_end import end_of_run, last_lines
from modules.session.atomic import rename
from modules.session.backups import newest_usable
from modules.session.FolderCommands import STARTED_VARIABLE, send_command
from modules.session.following import last_sign
from modules.session.free_folders import next_free_folder
from modules.session.printing import print_text
from modules.session.RunFolder import RunFolder

if TYPE_CHECKING:
    from modules.machine.Machine import Machine

SKIPPED = 76  # exit code: another process has the entry, or it is not to be started any more
STOPPED = 130

LOOK_SECONDS = 1.0
REPEAT_STOP_SECONDS = 3.0  # a starting run removes older commands
SETTINGS_NAME = "run.yaml"

Train = Callable[[list[str]], int]


def run_entry(path: Path, devices: Sequence[int], train: Train, machine: Machine) -> int:
    """Claim the entry in the folder at `path`, train it on `devices`, and return the exit code of the training.

    train: called with the options of scripts/train.py. The output of this process is the log of the entry.
    Returns SKIPPED if the entry is not to be started, or another process trains it.
    """
    entry = read_entry(path)
    claim = ProcessLock(entry.claim_path)
    if not claim.take():
        return SKIPPED
    try:
        entry = read_entry(path)  # what the last process that had it has left
        note_end(entry)
        entry = read_entry(path)
        if entry.record.end or entry.held:
            return SKIPPED
        return _train(entry, devices, train, machine)
    finally:
        claim.release()


def note_end(entry: QueueEntry, seen: str | None = None) -> bool:
    """Note how the last start of an entry ended if its process could not do so. The caller has claimed the entry.

    seen: how the process ended, if the caller has started it. Returns whether there was something to note.
    """
    if not entry.record.is_open:
        return False
    folder, until = RunFolder(entry.run_folder), time.time()
    found = end_of_run(folder, entry.record.started)
    if found is None:
        until = max(entry.record.started, min(until, last_sign(folder)))
        backup = newest_usable(folder)
        details = {"seen": os.getpid(), "text": seen, "step": backup.step if backup else 0} if seen else {}
        append_event(entry.events_path, "interrupted", until=until, **details)
    else:
        status, text = found
        if status == "stopped":  # by a pause, by the shutdown of the machine, or by a person
            status = "paused" if entry.held else "stopped" if entry.record.boot == boot_id() else "signal"
        append_event(entry.events_path, "ended", status=status, text=text, boot=entry.record.boot)
    return True


def _train(entry: QueueEntry, devices: Sequence[int], train: Train, machine: Machine) -> int:
    log_start = entry.log_path.stat().st_size if entry.log_path.exists() else 0
    started = time.time()
    append_event(
        entry.events_path,
        "started",
        pid=os.getpid(),
        host=socket.gethostname(),
        boot=boot_id(),
        devices=list(devices),
        run_folder=entry.run_folder,
        owns=_owns_run(entry),
    )
    entry = read_entry(entry.path)
    code, why, signals = 1, "", []
    try:
        options = _options(entry, devices, machine)
        os.environ[STARTED_VARIABLE] = repr(started)
        with _signals_noted() as signals, _stopped_when_asked(entry, started) as asked:
            code = train(options)
        why = asked[0] if asked else ""
    except UserError as error:
        code = 2
        print_text(error, sys.stderr)
    except Exception:  # a bug of ours must be on record, or the queue would try it again
        print_text(traceback.format_exc(), sys.stderr)
    status, text = _outcome(entry, code, why, bool(signals), started, log_start)
    append_event(entry.events_path, "ended", status=status, text=text, code=code, boot=boot_id())
    return code


def _options(entry: QueueEntry, devices: Sequence[int], machine: Machine) -> list[str]:
    """Write the settings of this start and return the options of scripts/train.py."""
    settings = entry.path / SETTINGS_NAME
    save_config(with_gpus(entry.config(), entry.gpus, devices, machine), settings)
    folder = RunFolder(entry.run_folder)
    if not entry.record.owns:
        folder.refuse_earlier_run()
    resumes = entry.resumes or newest_usable(folder) is not None
    if not resumes:
        _set_aside(folder)
    return ["--supervise", "--config", str(settings), *(["--resume"] if resumes else [])]


def _owns_run(entry: QueueEntry) -> bool:
    """Whether the run in the entry's folder, if there is one, is the one to go on with."""
    if entry.record.owns or entry.resumes:
        return True
    try:
        RunFolder(entry.run_folder).refuse_earlier_run()
    except UserError:
        return False
    return True


def _set_aside(folder: RunFolder) -> None:
    """Rename a folder in which the run has saved models but no backup, so that it can begin again without loss."""
    try:
        folder.refuse_earlier_run()
    except UserError:
        rename(folder.path, next_free_folder(f"{folder.path}-unfinished-0"))


def _outcome(
    entry: QueueEntry, code: int, why: str, by_signal: bool, started: float, log_start: int
) -> tuple[End, str]:
    """How the training ended, and why, in words."""
    folder = RunFolder(entry.run_folder)
    found = end_of_run(folder, started)
    text = found[1] if found else ""
    if code == 0:
        return "finished", text
    if code != STOPPED:
        return "failed", text or last_lines(entry.log_path, log_start) or f"It ended with exit code {code}."
    if why == "limit":
        return "limit", f"Stopped at its limit of {entry.limit_hours:g} h; {text}".rstrip("; ")
    if why == "held":
        return "paused", text
    return ("signal" if by_signal else "stopped"), text


@contextlib.contextmanager
def _stopped_when_asked(entry: QueueEntry, started: float) -> Iterator[list[str]]:
    """Within the block, stop the run if its entry is held, or its time over; the list then has "held" or "limit"."""
    asked: list[str] = []
    is_over = threading.Event()
    begun = time.monotonic()

    def reason() -> str:
        try:
            now = read_entry(entry.path)
        except UserError:  # its folder was removed by hand, or the disk is away for a moment
            return ""
        limit = now.limit_hours
        is_late = limit is not None and entry.record.seconds + time.monotonic() - begun >= limit * 3600
        return "held" if now.held else "limit" if is_late else ""

    def watch() -> None:
        seconds = LOOK_SECONDS
        while not is_over.wait(seconds):
            why = reason()
            if why and not asked:
                asked.append(why)
            if asked:
                seconds = REPEAT_STOP_SECONDS
                with contextlib.suppress(UserError, OSError):  # it has no folder yet, or its disk is away
                    send_command(RunFolder(entry.run_folder), "stop")

    thread = threading.Thread(target=watch, name="queue entry", daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        is_over.set()
        thread.join()


@contextlib.contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """The numbers of the signals that came within the block and that somebody answers, whoever does so.

    Nothing may answer them in this process besides the run, so they are seen by what Python writes for each.
    """
    found: list[int] = []
    if os.name == "nt":
        yield found
        return
    receiver, sender = socket.socketpair()
    receiver.setblocking(False)
    sender.setblocking(False)
    before = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    try:
        yield found
    finally:
        signal.set_wakeup_fd(before)
        with contextlib.suppress(BlockingIOError):
            ending = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
            found.extend(number for number in receiver.recv(4096) if number in ending)
        receiver.close()
        sender.close()
