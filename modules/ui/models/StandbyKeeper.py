"""Which processes wait for a start, and until when. No Tk."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from modules.machine.devices import num_cores
from modules.machine.machine_memory import available_bytes
from modules.machine.memory_estimate import GIB
from modules.ui.models.Standby import Kind, Standby, StandbyPlan

if TYPE_CHECKING:
    from modules.ui.models.Scheduler import Scheduler

LOOK_SECONDS = 2.0
FIRST_SECONDS = 5.0  # after the window has opened: it reads models and images first
REST_SECONDS = 2.0  # without a key or a click, before a process starts and takes a core for some seconds
UNUSED_SECONDS = 600.0  # without a key or a click, after which all end
PROCESS_BYTES = 0.4 * GIB  # of each process, measured with the libraries of a run imported
SPARE_BYTES = 2 * GIB  # that stay available when a process starts; below half of it all end


class TakeStandby(Protocol):
    """`StandbyKeeper.take`."""

    def __call__(
        self, kind: Kind, script: str, arguments: Sequence[str], variables: Mapping[str, str] = ..., log: Path = ...
    ) -> subprocess.Popen[bytes] | None: ...


class StandbyKeeper:
    """Keeps one process waiting for each plan in `wanted()` while the window is in use and memory is not short.

    is_on: whether the user wants that. Nothing waits before `start`.
    """

    def __init__(self, wanted: Callable[[], Iterable[StandbyPlan]], is_on: Callable[[], bool]):
        self._wanted, self._is_on = wanted, is_on
        self._waiting: dict[Kind, Standby] = {}
        self._failed: set[StandbyPlan] = set()  # for which a process has ended by itself, and would again
        self._lock = threading.Lock()  # processes are taken by other threads, too
        self._started: float | None = None
        self._last_use = 0.0
        self._is_closed = False

    def start(self, scheduler: Scheduler) -> None:
        """From now on, keep processes waiting."""
        if num_cores() < 2:  # it would hold up the window
            return
        self._started = self._last_use = time.monotonic()
        scheduler.every(LOOK_SECONDS, self.look)

    def note_use(self) -> None:
        """The user has pressed a key or a button of the mouse in the window."""
        self._last_use = time.monotonic()

    def look(self) -> None:
        """Start what is wanted and end what is not."""
        now = time.monotonic()
        self._look(rests=now - self._last_use >= REST_SECONDS and now - (self._started or now) >= FIRST_SECONDS)

    def hurry(self) -> None:
        """As `look`, at once: something will probably be started soon."""
        if self._started is not None:
            self._look(rests=True)

    def take(
        self,
        kind: Kind,
        script: str,
        arguments: Sequence[str],
        variables: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> subprocess.Popen[bytes] | None:
        """As `Standby.take`, of the process that waits for `kind`; None if there is none. In any thread."""
        with self._lock:
            standby = self._waiting.pop(kind, None)
        return None if standby is None else standby.take(script, arguments, variables, log)

    def close(self) -> None:
        """End all that wait, for good."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, {}
        for standby in waiting.values():
            standby.end()

    def _look(self, rests: bool) -> None:
        plans = {plan.kind: plan for plan in self._wanted()} if self._is_needed() else {}
        with self._lock:
            for kind, standby in list(self._waiting.items()):
                if not standby.is_waiting:
                    self._failed.add(standby.plan)
                if plans.get(kind) != standby.plan or not standby.is_waiting:
                    del self._waiting[kind]
                    standby.end()
            for kind, plan in plans.items():
                if rests and not self._is_closed and kind not in self._waiting and self._can_start(plan):
                    self._start(plan)

    def _is_needed(self) -> bool:
        is_used = time.monotonic() - self._last_use < UNUSED_SECONDS
        return is_used and self._is_on() and (available_bytes() or 0) > SPARE_BYTES / 2

    def _can_start(self, plan: StandbyPlan) -> bool:
        num_processes = plan.num_ranks + 1 if plan.kind == "train" else 1
        return plan not in self._failed and (available_bytes() or 0) > SPARE_BYTES + num_processes * PROCESS_BYTES

    def _start(self, plan: StandbyPlan) -> None:
        try:
            self._waiting[plan.kind] = Standby(plan)
        except OSError:  # a start will say what is wrong
            self._failed.add(plan)
