"""What the window shows of a run, as plain data last read from the run folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modules.session.events import is_time


@dataclass(frozen=True)
class RankRow:
    """One rank, according to its own events and the supervisor.

    device: such as "cuda:1" or "cpu", with several machines "0:cuda:1"; "" while unknown.
    state: waiting, loading, caching, training, sampling or saving; at the end finished, stopped, failed, killed, hung
    or ended.
    loss: of the last step, None before it. memory_bytes, peak_memory_bytes: on its device, None if not measured.
    data_seconds: how long its last step waited for data. heartbeat_seconds: age of its last heartbeat, None before the
    first one.
    """

    rank: int
    device: str = ""
    state: str = "waiting"
    step: int = 0
    steps_per_second: float | None = None
    samples_per_second: float | None = None
    loss: float | None = None
    memory_bytes: int | None = None
    peak_memory_bytes: int | None = None
    data_seconds: float | None = None
    heartbeat_seconds: float | None = None


@dataclass(frozen=True)
class SamplePicture:
    """A sample that the run made after `step` steps."""

    step: int
    prompt: str
    path: Path


@dataclass(frozen=True)
class Activity:
    """Work before the first step, such as caching: `done` of the `total` items of all ranks."""

    text: str
    done: int
    total: int


@dataclass(frozen=True)
class SavedModel:
    """A file or folder of the model as it was after `step` steps."""

    step: int
    path: Path


@dataclass(frozen=True)
class LogLine:
    """One line of the log. time: Unix seconds. rank: None for the supervisor. kind: the event's type."""

    time: float
    rank: int | None
    kind: str
    text: str


@dataclass
class RunState:
    """A run from its start to its end.

    folder: None before there is a run. phase: what it is doing, in words. activity: the progress of that, if it is
    counted. waits_for: that it waits for something that a person can provide, in words; "" if it does not. started:
    when it was started or last resumed, in Unix seconds; None in records of old versions. is_resumed: whether it was.
    is_running: whether its processes are running. is_stopping: whether it was asked to stop. total: the step at which
    it ends, 0 while unknown. smooth: the running mean of the loss. eta_seconds: until the last step; None while it
    can't be estimated. samples_per_second: over all ranks. exit: the content of exit.json, None while it runs.
    message: what prevents the window from reading the run, such as a missing folder; "" if nothing does.
    """

    folder: Path | None = None
    phase: str = ""
    activity: Activity | None = None
    waits_for: str = ""
    started: float | None = None
    is_resumed: bool = False
    is_running: bool = False
    is_stopping: bool = False
    epoch: int = 0
    step: int = 0
    total: int = 0
    loss: float | None = None
    smooth: float | None = None
    lr: float | None = None
    steps_per_second: float | None = None
    samples_per_second: float | None = None
    eta_seconds: float | None = None
    ranks: list[RankRow] = field(default_factory=list)
    warnings: list[LogLine] = field(default_factory=list)
    samples: list[SamplePicture] = field(default_factory=list)
    backups: list[Path] = field(default_factory=list)
    saved: list[SavedModel] = field(default_factory=list)
    exit: dict[str, Any] | None = None
    message: str = ""

    def elapsed(self, now: float) -> float | None:
        """Seconds from its start to its end, or until `now`, in Unix seconds; None if unknown."""
        end = now if self.exit is None else self.exit.get("time")
        return None if self.started is None or not is_time(end) else max(0.0, end - self.started)
