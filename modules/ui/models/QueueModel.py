"""The queue of training runs as the window shows and changes it. No Tk.

The queue is a folder that other windows, the terminal and its own processes change, too (docs/queue.md): it is read
again and again, and every change is made there, in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.queue.gpus import GpuChoice, describe_gpus
from modules.queue.processes import continue_queue
from modules.queue.queue_text import STATE_TEXTS, describe_entry, time_text
from modules.queue.QueueEntry import TO_DO, QueueEntry, State
from modules.queue.TrainingQueue import TrainingQueue
from modules.ui.models.Listeners import Listeners

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.ui.models.Scheduler import Scheduler
    from modules.ui.models.SettingsModel import SettingsModel, Snapshot

T = TypeVar("T")

LOOK_SECONDS = 1.5
RESTART_SECONDS = 20.0  # between two starts of the queue's process, which takes a moment to begin


@dataclass(frozen=True)
class QueueRow:
    """An entry. cells: as in the table. text: what became of it, maybe long. The rest: as in QueueEntry."""

    id: str
    name: str
    state: State
    cells: tuple[str, ...]
    text: str
    gpus: GpuChoice
    not_before: float | None
    limit_hours: float | None
    run_folder: Path
    was_started: bool

    @property
    def can_pause(self) -> bool:
        return self.state in (*TO_DO, "running")

    @property
    def can_retry(self) -> bool:
        return self.state in ("paused", "failed", "stopped", "limit")

    @property
    def can_edit(self) -> bool:
        return self.state not in ("running", "finished")


@dataclass(frozen=True)
class QueueView:
    """The queue as last read. problem: why it, or a part of it, can't be read; "" if it can."""

    rows: tuple[QueueRow, ...] = ()
    is_on: bool = False
    side_by_side: bool = False
    problem: str = ""

    @property
    def num_to_do(self) -> int:
        return sum(row.state in TO_DO for row in self.rows)

    @property
    def running(self) -> tuple[QueueRow, ...]:
        return tuple(row for row in self.rows if row.state == "running")

    def row(self, id: str) -> QueueRow | None:
        return next((row for row in self.rows if row.id == id), None)

    def state_text(self) -> str:
        """What the queue does, as a title."""
        if not self.rows:
            return "The queue is empty"
        counts = [
            f"{len(self.running)} running" if self.running else "",
            f"{self.num_to_do} waiting" if self.num_to_do else "",
        ]
        shown = ", ".join(filter(None, counts)) or "nothing is waiting"
        if self.is_on:
            return f"The queue is on: {shown}"
        return f"The queue is off: {shown}"


class QueueModel:
    """The queue in the folder at `path`.

    settings: those that the window shows. has_gpus: whether this machine has GPUs, as far as is known. tell: shows
    people a message of a kind, "info" or "error". view: as of the last look. editing: the entry whose settings the
    window shows, to be saved back to it; None: it shows those of the next run.
    """

    def __init__(
        self,
        path: Path,
        settings: SettingsModel,
        scheduler: Scheduler,
        has_gpus: Callable[[], bool],
        tell: Callable[[str, Literal["info", "error"]], object],
    ):
        self.queue = TrainingQueue(path)
        self.view = QueueView()
        self.editing: QueueRow | None = None
        self._settings = settings
        self._own: Snapshot | None = None  # the settings of the next run, while those of an entry are edited
        settings.subscribe(self._end_after_undo)
        self._scheduler, self._has_gpus, self._tell = scheduler, has_gpus, tell
        self._is_looking = False
        self._next_start = time.monotonic() + RESTART_SECONDS  # a new window starts it by continue_after_restart
        self._listeners: Listeners[[QueueView]] = Listeners()

    def subscribe(self, listener: Callable[[QueueView], object]) -> Callable[[], None]:
        """Call `listener` with every new view. Returns a function that unsubscribes."""
        return self._listeners.add(listener)

    def look(self) -> None:
        """Read the queue in a thread, unless that is being done already, and start its process if that has died."""
        if self._is_looking:
            return
        self._is_looking = True
        queue, may_start, has_gpus = self.queue, time.monotonic() >= self._next_start, self._has_gpus()

        def read() -> tuple[QueueView, bool]:
            view = read_view(queue, has_gpus)
            try:
                return view, may_start and view.is_on and continue_queue(queue) is not None
            except (UserError, OSError) as error:
                return replace(view, problem=view.problem or str(error)), False

        def show(found: tuple[QueueView, bool]) -> None:
            view, has_started = found
            if has_started:
                self._next_start = time.monotonic() + RESTART_SECONDS
                self._tell("The process of the queue had ended: it was started again.", "info")
            self._take(view)

        def end(error: Exception) -> None:
            self._is_looking = False
            raise error

        self._scheduler.in_background(read, show, end)

    def do(self, action: Callable[[TrainingQueue], T], then: Callable[[T], object] = lambda result: None) -> None:
        """Change the queue in a thread, then show it and call `then` with the result; a message says what failed."""
        queue, has_gpus = self.queue, self._has_gpus()
        self._next_start = time.monotonic() + RESTART_SECONDS  # the action may start the process

        def change() -> tuple[T, QueueView]:
            result = action(queue)
            return result, read_view(queue, has_gpus)

        def show(done: tuple[T, QueueView]) -> None:
            self._take(done[1])
            then(done[0])

        def fail(error: Exception) -> None:
            if not isinstance(error, UserError | OSError):
                raise error
            text = str(error) if isinstance(error, UserError) else f"{queue.path} can't be written ({error.strerror})."
            self._tell(text, "error")
            self.look()

        self._scheduler.in_background(change, show, fail)

    def continue_after_restart(self) -> None:
        """Start the process of a queue that is on and has none, as after a reboot."""

        def told(process: object) -> None:
            if process is not None:
                self._tell(f"The queue continues: {counted(self.view.num_to_do, 'run')} to do.", "info")

        self.do(continue_queue, told)

    def edit(self, row: QueueRow, config: TrainConfig) -> None:
        """Show the settings of an entry in place of those of the next run, which come back in the end."""
        if self._own is None:
            self._own = self._settings.kept()
        self.editing = row
        self._settings.load_copy(config, row.name)
        self._listeners.tell(self.view)

    def end_editing(self) -> None:
        """Show the settings of the next run again; undo leads back to those of the entry."""
        own, self._own = self._own, None
        if own is not None:
            self._settings.return_to(own)
            self._set_none()

    def _end_after_undo(self, paths: set[str]) -> None:
        """Where undo has led back to the settings of the next run, they must not be saved to the entry."""
        if self._own is not None and self._settings.stem_from(self._own):
            self._own = None
            self._set_none()

    def _set_none(self) -> None:
        self.editing = None
        self._listeners.tell(self.view)

    def _take(self, view: QueueView) -> None:
        self._is_looking = False
        if view != self.view:
            self.view = view
            self._listeners.tell(view)


def read_view(queue: TrainingQueue, has_gpus: bool) -> QueueView:
    """The queue as its files say now."""
    try:
        settings, entries = queue.settings(), queue.entries()
        problem = " ".join(queue.damaged())
    except UserError as error:
        return QueueView(problem=str(error))
    except OSError as error:
        return QueueView(problem=f"{queue.path} can't be read ({error.strerror}): check its disk.")
    now = time.time()
    return QueueView(
        tuple(_row(entry, now, has_gpus) for entry in entries), settings.is_on, settings.side_by_side, problem
    )


def _row(entry: QueueEntry, now: float, has_gpus: bool) -> QueueRow:
    text = describe_entry(entry, now)
    when = "" if entry.not_before is None else time_text(entry.not_before, now)
    limit = "" if entry.limit_hours is None else f"{entry.limit_hours:g} h"
    is_told = when and text.endswith(f"not before {when}")  # in a column of its own
    shown = text.removesuffix(f"not before {when}").rstrip(", ") if is_told else text.replace("\n", " ")
    return QueueRow(
        entry.id,
        entry.name,
        entry.state,
        (entry.name, STATE_TEXTS[entry.state], describe_gpus(entry.gpus, has_gpus), when, limit, shown),
        text,
        entry.gpus,
        entry.not_before,
        entry.limit_hours,
        Path(entry.run_folder),
        entry.record.was_started,
    )
