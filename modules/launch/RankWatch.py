"""Decides which rank caused a run to fail, and why, from heartbeats, exit codes and error reports."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from modules.launch.lifeline import LOST_EXIT_CODE, UNGUARDED_EXIT_CODE, LifelineServer, RankError, RankState
from modules.session.out_of_memory import ADVICE

SETTLE_SECONDS = 1.0  # from the first sign of trouble to the verdict: a symptom may be seen before its cause
START_SECONDS = 600.0  # for a rank to connect: importing libraries from a network disk takes minutes
SUSPENDED_SECONDS = 5.0  # after a gap this long the watcher itself was suspended, and perhaps its ranks with it
TRACEBACK_LINES = 20
LOOK_SECONDS = 0.1
_UNGUARDED = (
    "Each rank imports the program, which would launch ranks again: call launch_distributed_training below "
    '`if __name__ == "__main__":`.'
)
CLOSE_SECONDS = 1.0  # ranks that fall silent within this time: their order says little about the cause


@dataclass(frozen=True)
class Failure:
    """Why a run failed.

    text: one sentence for the user. time: when it happened, by `time.monotonic`. is_symptom: the cause is another
    rank, perhaps on another machine. traceback: its last lines. signal: such as "SIGKILL".
    """

    rank: int
    kind: Literal["killed", "error", "user_error", "out_of_memory", "hung", "ended", "lost"]
    text: str
    time: float
    is_symptom: bool = False
    signal: str | None = None
    exit_code: int | None = None
    phase: str | None = None
    traceback: str | None = None

    def record(self) -> dict[str, Any]:
        """The fields of exit.json that describe it."""
        left_out = ("time", "is_symptom")
        return {name: value for name, value in vars(self).items() if value is not None and name not in left_out}


class HasRanks(Protocol):
    ranks: dict[int, RankState]


class RankWatch:
    """Watches the ranks of one node.

    server: its `ranks` are inspected; this class never polls it. ranks: the expected ranks, so that one that never
    connects is noticed too.
    """

    def __init__(self, server: HasRanks, ranks: Iterable[int] = ()):
        self._server = server
        self._expected = frozenset(ranks)
        self._exits: dict[int, tuple[float, int | None]] = {}
        self._started: float | None = None
        self._last_look: float | None = None
        self._awake_since = float("-inf")
        self._first_sign: float | None = None

    def exited(self, rank: int, code: int | None, now: float | None = None) -> None:
        """Report that the process of `rank` is gone. code: minus the signal number after a signal; None: unknown."""
        time_of_exit, known = self._exits.get(rank, (time.monotonic() if now is None else now, None))
        self._exits[rank] = (time_of_exit, code if known is None else known)

    def verdict(self, now: float) -> Failure | None:
        """The root cause, once it has had time to show; None while all is well or the cause is still unclear."""
        self._restart_after_suspension(now)
        troubles = {rank: trouble for rank in self._all_ranks() if (trouble := self._trouble(rank, now)) is not None}
        if not troubles:
            self._first_sign = None  # an exit was seen before the message that explained it
            return None
        if self._first_sign is None:
            self._first_sign = now
        if now - self._first_sign < SETTLE_SECONDS and not self._is_all_known(troubles):
            return None
        return min(troubles.values(), key=_causes_first)

    @property
    def is_undecided(self) -> bool:
        """Whether the last look for a verdict found trouble whose cause is still unclear."""
        return self._first_sign is not None

    def refresh(self, failure: Failure, now: float) -> Failure:
        """`failure` with what has become known about its rank since, such as an exit code."""
        return self._trouble(failure.rank, now) or failure

    def _restart_after_suspension(self, now: float) -> None:
        """Restart all limits after the watcher itself was suspended (Ctrl-Z): it has read no heartbeats meanwhile."""
        if self._started is None:
            self._started = now
        elif self._last_look is not None and now - self._last_look > SUSPENDED_SECONDS:
            self._awake_since = now
        self._last_look = now

    def _all_ranks(self) -> list[int]:
        return sorted(self._expected | self._server.ranks.keys() | self._exits.keys())

    def _is_all_known(self, troubles: dict[int, Failure]) -> bool:
        """Whether every rank has ended and it is known how, so that nothing more can arrive."""
        for rank in self._all_ranks():
            trouble = troubles.get(rank)
            if trouble is None and rank not in self._exits:
                return False
            if trouble is not None and (trouble.kind in ("lost", "hung") or self._may_have_said_more(rank)):
                return False
        return True

    def _may_have_said_more(self, rank: int) -> bool:
        """Whether a message of `rank` may be unread: its exit is seen at once, its messages at the next poll.

        Its first one, too: a short rank may have ended before its connection was accepted.
        """
        state = self._server.ranks.get(rank)
        return state is None or (state.is_connected and state.error is None)

    def _trouble(self, rank: int, now: float) -> Failure | None:
        state = self._server.ranks.get(rank)
        if state is not None and state.error is not None:
            return _said(state, state.error)
        if rank in self._exits:
            return _exited(rank, state, *self._exits[rank])
        if state is None:
            return self._not_started(rank, now)
        if state.lost_at is not None:
            return _lost(rank, state, state.lost_at)
        return None if state.done else self._hung(state, now)

    def _not_started(self, rank: int, now: float) -> Failure | None:
        silent_since = max(now if self._started is None else self._started, self._awake_since)
        if now - silent_since <= START_SECONDS:
            return None
        return Failure(rank, "hung", f"Rank {rank} has not started within {START_SECONDS:g} s.", now)

    def _hung(self, state: RankState, now: float) -> Failure | None:
        silent_since = max(state.last_beat, self._awake_since)
        silent = now - silent_since
        # A rank that is ahead of another waits for it in a collective, even if it fell silent first.
        is_waiting = any(other.step_beats < state.step_beats for other in self._running())
        if silent <= state.limit_seconds or is_waiting:
            return None
        others = self._silent_with(state)
        ranks = f"rank{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}"
        also = f"; {ranks} stopped within {CLOSE_SECONDS:g} s of it and may be the cause" if others else ""
        text = (
            f"Rank {state.rank} has not moved for {silent:.0f} s while {state.phase} (limit {state.limit_seconds:g} s)"
            f"{also}."
        )
        # Of several silent ranks at the same place the first one is the cause.
        return Failure(state.rank, "hung", text, silent_since, phase=state.phase)

    def _silent_with(self, state: RankState) -> list[int]:
        """Ranks that fell silent there at almost the same time: in a collective all stop within milliseconds."""
        there = [s for s in self._running() if s.step_beats == state.step_beats]
        close = [s.rank for s in there if abs(s.last_beat - state.last_beat) < CLOSE_SECONDS]
        return sorted(set(close) - {state.rank})

    def _running(self) -> list[RankState]:
        return [s for s in self._server.ranks.values() if not s.done and s.error is None and s.lost_at is None]


def watch_in_thread(
    server: LifelineServer, on_verdict: Callable[[Failure], None], ranks: Iterable[int] = ()
) -> threading.Thread:
    """Watch ranks that another launcher has started, such as torchrun. Called by the rank that hosts `server`.

    The daemon thread that is returned owns `server` from then on. On a verdict it calls `on_verdict`, then ends all
    ranks of the node, including this one if it is connected. It finishes when all ranks are done.
    """
    expected = frozenset(ranks)

    def watch() -> None:
        rank_watch = RankWatch(server, expected)
        while not _all_done(server, expected):
            server.poll(LOOK_SECONDS)
            failure = rank_watch.verdict(time.monotonic())
            if failure is not None:
                try:
                    on_verdict(failure)
                finally:
                    server.end_all()
                return

    thread = threading.Thread(target=watch, name="rank watch", daemon=True)
    thread.start()
    return thread


def _all_done(server: HasRanks, expected: frozenset[int]) -> bool:
    return bool(server.ranks) and expected <= server.ranks.keys() and all(s.done for s in server.ranks.values())


def _causes_first(failure: Failure) -> tuple[int, float]:
    """Sort key that puts causes before effects."""
    group = 2 if failure.is_symptom else 1 if failure.kind == "hung" else 0
    return group, failure.time


def _said(state: RankState, error: RankError) -> Failure:
    return Failure(
        state.rank,
        "user_error" if error.is_user_error else "out_of_memory" if error.text in ADVICE else "error",
        error.text,
        error.time,
        is_symptom=error.is_symptom,
        phase=state.phase,
        traceback="\n".join(error.traceback.splitlines()[-TRACEBACK_LINES:]) or None,
    )


def _exited(rank: int, state: RankState | None, seen_at: float, code: int | None) -> Failure | None:
    if state is not None and state.done and not code:
        return None
    if code is None:
        return _lost(rank, state, seen_at)
    gone_at = seen_at if state is None or state.lost_at is None else min(seen_at, state.lost_at)
    phase = "loading" if state is None else state.phase
    if code < 0:
        name = signal_name(-code)
        return Failure(rank, "killed", _killed_text(rank, name), gone_at, signal=name, exit_code=code, phase=phase)
    if code == UNGUARDED_EXIT_CODE:
        return Failure(rank, "user_error", _UNGUARDED, gone_at, exit_code=code, phase=phase)
    if code == 0:
        text = f"Rank {rank} ended before the training was finished."
    else:
        text = f"Rank {rank} ended with exit code {code} without saying why; see log/rank-{rank}.log."
    is_symptom = code == LOST_EXIT_CODE
    return Failure(rank, "ended", text, gone_at, is_symptom=is_symptom, exit_code=code, phase=phase)


def _lost(rank: int, state: RankState | None, lost_at: float) -> Failure:
    text = f"Rank {rank} ended without saying why; see log/rank-{rank}.log."
    return Failure(rank, "lost", text, lost_at, phase="loading" if state is None else state.phase)


def signal_name(number: int) -> str:
    """The name of a signal, such as "SIGKILL"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _killed_text(rank: int, name: str) -> str:
    if name == "SIGKILL":
        return f"Rank {rank} was killed by SIGKILL: most often the system's memory was full; lower batch_size."
    return f"Rank {rank} was killed by {name}."
