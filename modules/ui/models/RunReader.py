"""Reads from a run folder what the window shows."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import shutil
import subprocess
import threading
import time
from collections import deque
from operator import itemgetter
from pathlib import Path
from typing import Any

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.visible_text import visible_line, visible_text
from modules.session.atomic import is_alive
from modules.session.backups import stopped_at_once
from modules.session.event_types import (
    BackupEvent,
    Event,
    FailedEvent,
    ProgressEvent,
    SampleEvent,
    SavedEvent,
    StartedEvent,
    StatusEvent,
    ValidationEvent,
    WaitingEvent,
    WarningEvent,
)
from modules.session.events import EventRecord, is_time
from modules.session.FolderCommands import send_command
from modules.session.following import RunFollower, is_running, read_end, read_tail, recorded_path
from modules.session.introduction import device_of, is_fact
from modules.session.RunFolder import RunFolder
from modules.session.RunLock import holder_here
from modules.session.StepInfo import StepInfo
from modules.ui.models.LossHistory import LossHistory
from modules.ui.models.run_text import TRAINING
from modules.ui.models.RunState import Activity, LogLine, RankRow, RunState, SamplePicture, SavedModel

GENERATING = "Generating "  # begins the status of a rank that draws samples
WARM_UP_STEPS = 3  # after loading, in which kernels are compiled and caches filled
RECENT_STEPS = 50  # from which the speed is computed
LOOK_AROUND_SECONDS = 0.5  # between reads of everything but events: lock, exit.json, heartbeats
STEP_LINE_SECONDS = 5.0  # between two step lines of a rank in the log
MAX_LOG_LINES = 20_000  # plus as many steps of ranks other than 0
REFUSED = 2  # the exit code of scripts/train.py for invalid settings
REFUSAL_LINES = 10
MAX_WARNINGS = 1000
FULL_BYTES = 2**20  # free on a disk that is as good as full: the events of its run may no longer arrive

GONE = "The run folder {} is gone: connect its disk again, or open another run."
NO_RECORD = "The run ended without recording why: see the end of log/rank-0.log and log/supervisor.log."


class RunReader:
    """The state of the run in `folder`, from its beginning.

    `look` reads what is new; one thread calls it repeatedly. Everything else is thread-safe and never waits for it.
    process: the process just started in the folder; any older record of a run's end belongs to an earlier run.
    is_running: whether a run is active there, as far as is known before the first `look`.
    state: as last read. It is replaced, not modified.
    """

    def __init__(self, folder: RunFolder, process: subprocess.Popen | None = None, is_running: bool = False):
        self.folder = folder
        self.history = LossHistory()
        self.state = RunState(folder=folder.path, is_running=is_running or process is not None)
        self._process = process
        self._started = time.time() if process is not None else 0.0
        self._has_history = process is not None  # until what earlier starts have left in the folder is read
        self._follower = RunFollower(folder)
        self._log_lock = threading.Lock()
        self._state = dataclasses.replace(self.state)
        self._rows: dict[int, RankRow] = {}
        self._heartbeats: dict[int, dict[str, Any]] = {}  # by rank, of those that are running
        self._last_event: dict[int, float] = {}
        self._last_steps: dict[int, StepInfo] = {}  # by rank, not yet shown in the rows
        self._disk_text = ""  # that its disk is full
        self._progress: dict[int, ProgressEvent] = {}  # by rank, of what it is doing
        # With their numbers. Steps of other ranks than 0 are separate: those of 64 ranks would displace all else.
        self._lines: deque[tuple[int, LogLine]] = deque(maxlen=MAX_LOG_LINES)
        self._other_steps: deque[tuple[int, LogLine]] = deque(maxlen=MAX_LOG_LINES)
        self._num_lines = 0
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT_STEPS)
        self._steps_since_status = 0
        self._warm_up_left = WARM_UP_STEPS
        self._last_step_line: dict[int, float] = {}  # by rank
        self._is_sampling: dict[int, bool] = {}  # the same
        self._holder: int | None = None  # the process of the run, if it is on this machine
        self._next_look_around = 0.0
        self._told_traceback: Any = None

    def log_since(self, number: int) -> tuple[list[LogLine], int]:
        """The log's lines after the first `number`, as far as they are still kept, and the number of lines so far."""
        with self._log_lock:
            found: list[tuple[int, LogLine]] = []
            for kept in (self._lines, self._other_steps):
                found += itertools.takewhile(lambda entry: entry[0] >= number, reversed(kept))
            return [line for _, line in sorted(found, key=itemgetter(0))], self._num_lines

    def look(self) -> bool:
        """Read a portion of what is new; returns whether more can be read right away. Never raises OSError."""
        try:
            records, has_more = self._follower.read()
        except OSError as error:
            self._say(f"The run folder {self.folder.path} can't be read ({error.strerror}): check its disk.")
            return False
        for record in records:
            self._take(record)
        self._note_last_steps()
        if self._has_history and not has_more:
            self._has_history = False
            self._leave_history()
        looks_around = not has_more and (bool(records) or time.monotonic() >= self._next_look_around)
        if looks_around:
            self._look_around()
        if records or looks_around:
            self._publish()
        return has_more

    def starting_pid(self) -> int | None:
        """The id of the started process, while it is running."""
        return self._process.pid if self._process is not None and self._process_runs() else None

    def repeat_stop(self) -> None:
        with contextlib.suppress(OSError, UserError):  # a missing folder is reported elsewhere
            send_command(self.folder, "stop")

    def note_forced_end(self) -> None:
        """Record in the folder that the run was ended by force, if it is gone and could not do so itself."""
        with contextlib.suppress(OSError):
            if read_end(self.folder, self._started) is None and not is_running(self.folder):
                self.folder.write_exit("stopped", rank=0, text=stopped_at_once(self.folder))

    def _publish(self) -> None:
        self._note_speed()
        rows = [self._rows[rank] for rank in self._ranks()]
        state = self._state
        self.state = dataclasses.replace(
            state,
            ranks=rows,
            waits_for=state.waits_for or self._disk_text,
            activity=self._activity(),
            warnings=list(state.warnings),
            samples=list(state.samples),
            backups=list(state.backups),
            saved=list(state.saved),
        )

    def _ranks(self) -> list[int]:
        """The ranks of the last start, which may be fewer than those of an earlier one."""
        started = self._state.started or 0.0
        return [rank for rank in sorted(self._rows) if rank in self._heartbeats or self._heard_since(started, rank)]

    def _heard_since(self, when: float, rank: int) -> bool:
        return self._last_event.get(rank, math.inf) >= when

    def _activity(self) -> Activity | None:
        """What the lowest busy rank is doing, counted over all ranks that do the same."""
        if not self._progress or self._state.exit is not None:
            return None
        text = self._progress[min(self._progress)].text
        same = [progress for progress in self._progress.values() if progress.text == text]
        return Activity(visible_line(text), sum(one.done for one in same), sum(one.total for one in same))

    # --- events -------------------------------------------------------------------------------------------------------

    def _take(self, record: EventRecord) -> None:
        rank, event = record.rank, record.event
        if rank is not None:
            self._last_event[rank] = record.time
            self._rows.setdefault(rank, RankRow(rank))
        if not isinstance(event, StepInfo):
            self._take_other(event, rank, record.time)
        elif rank is not None:
            self._take_step(event, rank, record.time)

    def _take_step(self, info: StepInfo, rank: int, when: float) -> None:
        self._last_steps[rank] = info
        self._progress.pop(rank, None)
        if rank == 0:
            self._state.phase, self._state.waits_for = TRAINING, ""
            self.history.add(info.step, info.loss, info.lr)
            self._steps_since_status += 1
            if self._warm_up_left:
                self._warm_up_left -= 1
            elif 0 < info.seconds < math.inf:
                self._recent.append((info.seconds, info.samples))
            self._note_progress(info)
        if when - self._last_step_line.get(rank, 0.0) >= STEP_LINE_SECONDS or info.step == self._state.total:
            self._last_step_line[rank] = when
            self._log(when, rank, info.type, info.describe())

    def _note_progress(self, info: StepInfo) -> None:
        state = self._state
        state.step, state.epoch, state.lr, state.total = info.step, info.epoch, info.lr, info.steps_total
        state.loss, state.smooth = info.loss, info.smooth_loss

    def _note_last_steps(self) -> None:
        """Update the rows once for all steps read together, as updating them for each would dominate in a long run."""
        for rank, info in self._last_steps.items():
            self._rows[rank] = self._with_step(self._rows[rank], info)
        self._last_steps.clear()

    def _with_step(self, row: RankRow, info: StepInfo) -> RankRow:
        own_speed = 1 / info.seconds if info.seconds > 0 else None
        return dataclasses.replace(
            row,
            device=info.device,
            step=info.step,
            loss=info.loss,
            steps_per_second=own_speed,
            samples_per_second=own_speed and own_speed * info.samples / max(1, len(self._ranks())),
            memory_bytes=info.memory_bytes,
            peak_memory_bytes=info.peak_memory_bytes,
            data_seconds=info.data_seconds,
        )

    def _note_speed(self) -> None:
        state = self._state
        state.steps_per_second = state.samples_per_second = state.eta_seconds = None
        if self._recent:
            seconds = sum(one for one, _ in self._recent)
            state.steps_per_second = len(self._recent) / seconds
            state.samples_per_second = sum(samples for _, samples in self._recent) / seconds
            if state.total and state.exit is None:
                state.eta_seconds = max(0, state.total - state.step) / state.steps_per_second

    def _take_other(self, event: Event, rank: int | None, when: float) -> None:
        state = self._state
        if rank == 0 and not isinstance(event, WarningEvent):
            state.waits_for = visible_line(event.text) if isinstance(event, WaitingEvent) else ""
        match event:
            case StartedEvent():
                if rank == 0:
                    self._note_start(event.started)
                return
            case StatusEvent() | WaitingEvent():
                self._take_status(visible_line(event.text), rank)
            case ProgressEvent() if rank is not None:
                self._progress[rank] = event
                if rank == 0:
                    state.phase = visible_line(event.text)
            case WarningEvent() if len(state.warnings) < MAX_WARNINGS:
                state.warnings.append(LogLine(when, rank, event.type, _text(event)))
            case SampleEvent():
                path = recorded_path(event.path, self.folder.samples_dir)
                state.samples.append(SamplePicture(event.step, event.prompt, path))
            case BackupEvent():
                state.backups.append(recorded_path(event.path, self.folder.backup_dir))
            case SavedEvent():
                state.saved.append(SavedModel(event.step, recorded_path(event.path, self.folder.models_dir)))
            case ValidationEvent() if rank == 0:
                self.history.add_validation(event.step, event.loss, event.ema_loss)
        self._log(when, rank, event.type, _text(event))

    def _note_start(self, started: float) -> None:
        """A new start of the run: the speed of an earlier one no longer applies."""
        self._state.is_resumed = self._state.step > 0
        self._state.started = started
        self._progress.clear()
        self._recent.clear()
        self._warm_up_left = WARM_UP_STEPS

    def _leave_history(self) -> None:
        """Until the process just started says what it does: the last that is known is of an earlier one."""
        if 0 in self._last_event and not self._heard_since(self._started, 0):
            self._note_start(self._started)
            self._state.phase = ""

    def _take_status(self, text: str, rank: int | None) -> None:
        if is_fact(text):
            if (found := device_of(text)) is not None:
                row = self._rows.setdefault(found[0], RankRow(found[0]))
                self._rows[found[0]] = dataclasses.replace(row, device=found[1])
            return
        if rank is not None:
            self._is_sampling[rank] = text.startswith(GENERATING)
        if rank in (0, None):
            self._state.phase = text
        if rank is not None:
            self._progress.pop(rank, None)
        if rank != 0:
            return
        if not self._steps_since_status:  # two statuses in a row: it is loading, and the old speed no longer applies
            self._recent.clear()
            self._warm_up_left = WARM_UP_STEPS
        self._steps_since_status = 0

    def _log(self, when: float, rank: int | None, kind: str, text: str) -> None:
        kept = self._other_steps if kind == "step" and rank != 0 else self._lines
        with self._log_lock:
            kept.append((self._num_lines, LogLine(when, rank, kind, text)))
            self._num_lines += 1

    # --- lock, exit.json and heartbeats -------------------------------------------------------------------------------

    def _look_around(self) -> None:
        self._next_look_around = time.monotonic() + LOOK_AROUND_SECONDS
        try:
            running = self._process_runs() or is_running(self.folder)
            record = read_end(self.folder, self._started)
            if record is None and not running:
                record = self._without_record()
            self._heartbeats = heartbeats = self._follower.heartbeats() if running else {}
            is_gone = not self.folder.path.is_dir()  # checked last, as its run seems to have ended too
        except OSError as error:
            self._say(f"The run folder {self.folder.path} can't be read ({error.strerror}): check its disk.")
            return
        if is_gone:
            self._state.is_running = self._runs_without_folder()
            self._say(GONE.format(self.folder.path))
            return
        with contextlib.suppress(OSError):  # it has just been there
            self._disk_text = full_disk_text(self.folder.path) if running else ""
        self._holder = (self._holder or holder_here(self.folder.lock_path)) if running else None
        self._note_end(running, record)
        for rank in heartbeats.keys() | self._rows.keys():
            row = self._rows.get(rank, RankRow(rank))
            self._rows[rank] = self._with_heartbeat(row, running, record, heartbeats.get(rank))
        self._state.message = ""

    def _process_runs(self) -> bool:
        """Whether the started process is running; it takes a second until it holds the folder's lock."""
        return self._process is not None and self._process.poll() is None

    def _runs_without_folder(self) -> bool:
        """Whether the run continues although its folder is gone; unknown for a run on another machine."""
        if self._process is not None:
            return self._process_runs()
        return self._state.is_running if self._holder is None else is_alive(self._holder)

    def _without_record(self) -> dict[str, Any] | None:
        """How a run ended that left no record: it was refused before it started, or killed with its supervisor."""
        if self._process is not None:
            words = read_tail(self.folder.window_log_path, REFUSAL_LINES)
            refused = self._process.returncode == REFUSED and words
            text = " ".join(words) if refused else NO_RECORD
            return {"status": "failed", "kind": "user_error" if refused else "lost", "text": text}
        return {"status": "failed", "kind": "lost", "text": NO_RECORD} if self._last_event else None

    def _note_end(self, running: bool, record: dict[str, Any] | None) -> None:
        state = self._state
        state.is_running, state.exit = running, record
        if record is None:
            return
        state.phase = _ending(record, state.step)
        traceback = record.get("traceback")
        if traceback and traceback != self._told_traceback:
            self._told_traceback = traceback
            self._log(_time_of(record), record.get("rank"), "traceback", visible_text(str(traceback)))

    def _with_heartbeat(
        self, row: RankRow, running: bool, record: dict[str, Any] | None, beat: dict[str, Any] | None
    ) -> RankRow:
        """`row` with its state and the age of its last heartbeat."""
        if record is not None:
            is_cause = record.get("status") == "failed" and record.get("rank") == row.rank
            word = record.get("kind") if is_cause else record.get("status")
            words: dict[str | None, str] = dict.fromkeys(("user_error", "error", "out_of_memory"), "failed")
            words["lost"] = "ended"
            word = "ended" if record.get("status") == "failed" and not is_cause else words.get(word, word)
            return dataclasses.replace(row, state=str(word), heartbeat_seconds=None)
        if not running:
            return dataclasses.replace(row, state="ended", heartbeat_seconds=None)
        last_event = self._last_event.get(row.rank)
        silent = [] if last_event is None else [max(0.0, time.time() - last_event)]
        before = "sampling" if self._is_sampling.get(row.rank) else "loading"
        state = "training" if row.step else before
        if beat is not None:
            silent.append(beat["silent_seconds"])
            state = str(beat.get("done") or beat.get("phase") or state)
        return dataclasses.replace(row, state=state, heartbeat_seconds=min(silent, default=None))

    def _say(self, message: str) -> None:
        if self._state.message != message:
            self._state.message = message
            self._publish()


def _ending(record: dict[str, Any], step: int) -> str:
    status = record.get("status")
    elsewhere = visible_text(f". {record.get('text')}") if record.get("elsewhere") else ""
    if status == "finished":
        return f"Finished after {counted(step, 'step')}{elsewhere}"
    if status == "stopped":
        return f"Stopped at step {step:,}{elsewhere}"
    return visible_text(f"Failed: {record.get('text') or 'the run left no reason'}")


def full_disk_text(folder: Path) -> str:
    """That there is no space left for a run, without a full stop; "" if there is. Raises OSError."""
    if shutil.disk_usage(folder).free >= FULL_BYTES:
        return ""
    return f"No space is left on the disk of {folder}: free some, or the run can't save anything"


def _text(event: Event) -> str:
    """The text of an event for the log; it has several lines only if an error's text does."""
    return (visible_text if isinstance(event, FailedEvent) else visible_line)(event.describe())


def _time_of(record: dict[str, Any]) -> float:
    """The time of the record, in Unix seconds; 0 if it has none."""
    return float(record["time"]) if is_time(record.get("time")) else 0.0
