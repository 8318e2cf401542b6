"""Starts what is due in a queue, and notices what has died. One process at a time does this for each queue."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from modules.config.errors import UserError
from modules.queue.entry_events import MAX_FRUITLESS, append_event
from modules.queue.gpus import devices_for
from modules.queue.ProcessLock import ProcessLock
from modules.queue.QueueEntry import QueueEntry, read_entry
from modules.queue.run_end import last_lines
from modules.queue.run_entry import SKIPPED, note_end
from modules.queue.TrainingQueue import TrainingQueue

if TYPE_CHECKING:
    from modules.machine.Machine import Machine

LOOK_SECONDS = 1.0
KILLED = "killed by"

Start: TypeAlias = Callable[[QueueEntry, Sequence[int]], "subprocess.Popen[bytes]"]


class QueueRunner:
    """Works off a queue until nothing is left to do, or it is turned off. Runs that were started go on without it.

    start: starts the process of an entry (`run_entry`) on devices. say: is told what happens, one line each.
    """

    def __init__(self, queue: TrainingQueue, start: Start, machine: Machine, say: Callable[[str], None]):
        self._queue, self._start, self._machine, self._say = queue, start, machine, say
        self._children: dict[str, tuple[subprocess.Popen[bytes], tuple[int, ...], int]] = {}
        self._lock = ProcessLock(queue.runner_lock_path)
        self._told: set[str] = set()

    def run(self) -> bool:
        """Returns False if another process is at work on the queue already."""
        self._queue.path.mkdir(parents=True, exist_ok=True)
        if not self._lock.take():
            return False
        try:
            self._queue.sweep()
            while self.step():
                time.sleep(LOOK_SECONDS)
        finally:
            self._lock.release()
        return True

    def step(self) -> bool:
        """Look once, note what has ended and start what is due; False once there is nothing left to do."""
        self._reap()
        entries = self._queue.entries()
        for text in self._queue.damaged():
            self._tell_once(text)
        for entry in entries:
            if entry.record.is_open and not entry.is_claimed and entry.id not in self._children:
                self._note(entry, None)
        settings = self._queue.settings()
        if settings.is_on:
            self._start_due(self._queue.entries(), settings.side_by_side)
        # a process that has just been started has not claimed its entry yet
        return bool(self._children and settings.is_on) or not self._queue.turn_off_if_done(self._lock.release)

    def _start_due(self, entries: Sequence[QueueEntry], side_by_side: bool) -> None:
        """Start entries in their order: none overtakes one that waits for GPUs."""
        taken = {device for _, devices, _ in self._children.values() for device in devices}
        taken |= {device for entry in entries if entry.is_claimed for device in entry.record.devices}
        is_busy = bool(self._children) or any(entry.is_claimed for entry in entries)
        now = time.time()
        for entry in entries:
            if entry.id in self._children or not entry.is_due(now):
                continue
            if is_busy and not side_by_side:
                return
            devices = devices_for(entry.gpus, self._machine, taken)
            if devices is None:
                return
            self._begin(entry, devices)
            taken |= set(devices)
            is_busy = True

    def _begin(self, entry: QueueEntry, devices: tuple[int, ...]) -> None:
        log_size = entry.log_path.stat().st_size if entry.log_path.exists() else 0
        self._say(f"{entry.name}: {'continues' if entry.record.was_started else 'starts'} in {entry.run_folder}")
        self._children[entry.id] = self._start(entry, devices), devices, log_size

    def _reap(self) -> None:
        for id, (process, _, log_size) in list(self._children.items()):
            code = process.poll()
            if code is None:
                continue
            del self._children[id]
            try:
                entry = read_entry(self._queue.entries_dir / id)
            except UserError:  # removed
                continue
            if code != SKIPPED:
                self._note(entry, _how(code), log_size, process.pid)
            self._tell_end(id)

    def _note(self, entry: QueueEntry, seen: str | None, log_size: int = 0, pid: int = 0) -> None:
        """Note the end of a process that has not done so. seen: how it ended, if it was started here."""
        claim = ProcessLock(entry.claim_path)
        if not claim.take():  # it was started again
            return
        try:
            entry = read_entry(entry.path)
            is_own = entry.record.pid == pid and entry.record.is_open
            if not note_end(entry, seen if is_own else None) and seen and entry.record.pid != pid:
                if seen.startswith(KILLED):  # before it could note its start
                    append_event(entry.events_path, "interrupted", seen=os.getpid(), text=seen, step=0)
                else:  # it ended before it could begin
                    text = last_lines(entry.log_path, log_size) or f"Its process could not begin: {seen}."
                    append_event(entry.events_path, "ended", status="failed", text=text)
            entry = read_entry(entry.path)
            if entry.record.fruitless >= MAX_FRUITLESS:
                append_event(entry.events_path, "ended", status="failed", text=_fruitless(entry))
        finally:
            claim.release()

    def _tell_end(self, id: str) -> None:
        try:
            entry = read_entry(self._queue.entries_dir / id)
        except UserError:
            return
        text = f" ({entry.record.text})" if entry.record.text else ""
        self._say(f"{entry.name}: {entry.state}{text}")

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._say(text)


def _how(code: int) -> str:
    """How a process ended, by its exit code."""
    if code < 0 and os.name != "nt":
        try:
            return f"{KILLED} {signal.Signals(-code).name}"
        except ValueError:
            return f"{KILLED} signal {-code}"
    return f"exit code {code}"


def _fruitless(entry: QueueEntry) -> str:
    return (
        f"Its process ended {MAX_FRUITLESS} times at step {entry.record.fruitless_step} without a reason "
        f"({entry.record.text}): {entry.log_path} has what it printed. Most often the system's memory was full."
    )
