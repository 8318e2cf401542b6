"""The parent process of a node's ranks: starts, watches and ends them, and records the outcome of the run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any, Literal

from modules.config.counted import counted
from modules.distributed.environments import ATTEMPT_VARIABLE
from modules.launch.launchers import Launcher, kill_processes
from modules.launch.lifeline import LifelineServer
from modules.launch.RankWatch import LOOK_SECONDS, Failure, RankWatch, signal_name
from modules.launch.stacks import with_stacks
from modules.session.atomic import write_json
from modules.session.backups import stopped_at_once
from modules.session.FolderCommands import send_command
from modules.session.run_token import TOKEN_VARIABLE
from modules.session.RunFolder import RunFolder
from modules.session.signals import (
    HANGUP_SIGNALS,
    NOTICE_SIGNALS,
    STOP_SIGNALS,
    signals_answered,
    signals_blocked,
    stop_message,
    stop_signals,
)
from modules.session.slurm import REQUEUE_SIGNALS, REQUEUED, requeue_signals
from modules.session.TrainCallbacks import TrainCallbacks

FINISHED, FAILED, STOPPED = 0, 1, 130

LINGER_SECONDS = 30.0  # for finished ranks to exit: libraries tear down threads and devices
_HEARTBEATS_SECONDS = 1.0
_EXIT_CODE_SECONDS = 3.0  # torchrun reports how a rank ended only once all its ranks have ended
_REAP_SECONDS = 10.0  # a killed process that still exists is stuck inside a driver; nothing more can be done

Outcome = Literal["finished", "stopped", "requeued"] | Failure


class Supervisor:
    """Runs the ranks of this node to the end, restarting them from the last backup where the settings allow it.

    make_launcher: called with the number of the attempt, from 0, and whether to resume; returns the ranks' launcher.
    callbacks: told about stops, restarts and failures; the ranks report everything else themselves.
    has_backup: whether there is a backup to restart from.
    grace_seconds: between asking a rank to end and killing it.
    first_rank: the rank of local rank 0. writes_exit: whether this node writes exit.json. has_all: whether all ranks of
        the run are on this node, so that it may end them without asking the others.
    token: of the run, for the ranks; None: the one of this process's environment, if any.
    train_alone: called if the ranks could not join the process group; makes the next launcher start a single rank,
        or returns False if that is not allowed.
    """

    def __init__(
        self,
        folder: RunFolder,
        make_launcher: Callable[[int, bool], Launcher],
        callbacks: TrainCallbacks,
        *,
        resume: bool = False,
        max_restarts: int = 0,
        has_backup: Callable[[], bool] = lambda: False,
        grace_seconds: float = 3.0,
        first_rank: int = 0,
        writes_exit: bool = True,
        has_all: bool = True,
        token: str | None = None,
        train_alone: Callable[[Failure], bool] = lambda failure: False,
    ):
        self._folder = folder
        self._make_launcher = make_launcher
        self._callbacks = callbacks
        self._resume = resume
        self._max_restarts, self._restarts = max_restarts, 0
        self._has_backup = has_backup
        self._grace_seconds = grace_seconds
        self._first_rank = first_rank
        self._writes_exit = writes_exit
        self._has_all = has_all
        self._token = {} if token is None else {TOKEN_VARIABLE: token}
        self._train_alone = train_alone
        self._stops: list[int] = []  # the signals received so far that ask for a stop
        self._heartbeats_due = 0.0
        self._has_passed_stop_on = False
        self._requeue_asked = False
        self._asked_to_requeue: set[int] = set()  # process ids of ranks

    def run(self) -> int:
        """Returns the exit code: 0 finished, 1 failed, 130 stopped, 75 stopped to be requeued by SLURM.

        In the last case the caller has to requeue the job and to write exit.json. Must be called from the main thread,
        which spawns the ranks. When it returns or raises, no rank is left.
        """
        attempt = 0
        with self._signals_answered():
            while (outcome := self._run_ranks(attempt)) is None:
                attempt += 1
        if isinstance(outcome, Failure):
            return FAILED
        return {"finished": FINISHED, "stopped": STOPPED, "requeued": REQUEUED}[outcome]

    def _run_ranks(self, attempt: int) -> Outcome | None:
        """How the run ended; None if it is to be restarted."""
        if self._stops and self._has_all:
            outcome = self._stopped_before_training()
            self._tell(outcome)
            return outcome
        launcher = self._make_launcher(attempt, self._resume)
        server = LifelineServer()
        watch = RankWatch(server, range(self._first_rank, self._first_rank + launcher.num_ranks))
        ranks = _Ranks(launcher, server, watch)
        self._callbacks.on_status(f"Starting {counted(launcher.num_ranks, 'process', 'processes')}")
        try:
            with signals_blocked((*HANGUP_SIGNALS, *NOTICE_SIGNALS)):  # handled by this process, not by the ranks
                launcher.start({**server.variables(), ATTEMPT_VARIABLE: str(attempt), **self._token})
            outcome = self._watch(ranks)
            if isinstance(outcome, Failure):
                outcome = self._with_details(outcome, ranks)
                if self._starts_again_after(outcome):
                    return None
            # before the ranks are reaped, so that a failure is reported even while a stuck rank is still alive
            server.end_all()
            self._tell(outcome)
            return outcome
        finally:
            self._end(ranks)
            server.close()

    def _watch(self, ranks: _Ranks) -> Outcome:
        """Returns when all ranks have finished, when one has failed, or when the user asks to stop at once."""
        while True:
            ranks.server.poll(LOOK_SECONDS)
            is_running = self._note_exits(ranks)
            self._show_heartbeats(ranks)
            failure = self._launcher_failure(ranks.launcher) or ranks.watch.verdict(time.monotonic())
            if failure is not None and self._stops and failure.rank not in ranks.server.ranks:
                # whatever ended it (perhaps the same signal, sent to all processes): it had nothing to save yet
                return self._stopped_before_training()
            if self._stops and self._has_all and not ranks.have_begun():
                return self._stopped_before_training()  # ranks that import would answer only after a minute
            if failure is not None:
                return failure
            if sum(number in STOP_SIGNALS for number in self._stops) > 1:
                self._callbacks.on_status(stopped_at_once(self._folder))
                return "stopped"
            self._pass_on_stop()
            self._pass_on_requeue(ranks)
            states = list(ranks.server.ranks.values())
            if len(states) < ranks.launcher.num_ranks or not all(state.done for state in states):
                continue
            if is_running:
                has_ended = self._end_lingering(ranks)
            else:  # a rank that is done may still have failed as it ended
                has_ended = not ranks.watch.is_undecided
            if has_ended:
                ends = {state.done for state in states}
                return next(end for end in ("requeued", "stopped", "finished") if end in ends)

    def _stopped_before_training(self) -> Outcome:
        text = stopped_at_once(self._folder) if self._resume else "Stopped before the training began"
        self._callbacks.on_status(text)
        return "stopped"

    def _launcher_failure(self, launcher: Launcher) -> Failure | None:
        """The launcher's own death. Checked before its ranks' errors: it causes them, as they lose their store."""
        number = launcher.killed_by()
        if number is None:
            return None
        name = signal_name(number)
        text = f"The process that started the ranks was killed by {name}."
        return Failure(self._first_rank, "ended", text, time.monotonic(), signal=name)

    def _note_exits(self, ranks: _Ranks) -> bool:
        """Tell the watch which ranks have ended; returns whether any may still be running."""
        is_running = ranks.launcher.is_running()  # read first, so that the exit codes read below are final
        for local_rank, code in ranks.launcher.exit_codes().items():
            if code is not None or not is_running:
                ranks.watch.exited(self._first_rank + local_rank, code)
        return is_running

    def _show_heartbeats(self, ranks: _Ranks) -> None:
        """Write heartbeats for whoever follows the run: during a long phase there are no events, only heartbeats."""
        now = time.monotonic()
        if now < self._heartbeats_due:
            return
        self._heartbeats_due = now + _HEARTBEATS_SECONDS
        seen = {
            str(rank): {
                "phase": state.phase,
                "silent_seconds": round(max(0.0, now - state.last_beat), 3),
                "limit_seconds": state.limit_seconds,
                "done": state.done,
            }
            for rank, state in sorted(ranks.server.ranks.items())
        }
        with contextlib.suppress(OSError):  # on a full disk the ranks keep training without being shown
            write_json(self._folder.heartbeats_path(self._first_rank), {"time": time.time(), "ranks": seen})

    def _end_lingering(self, ranks: _Ranks) -> bool:
        """End ranks that are all done but have not exited in time; returns False while they may still take longer."""
        if time.monotonic() - max(state.done_at or 0.0 for state in ranks.server.ranks.values()) < LINGER_SECONDS:
            return False
        self._callbacks.on_warning(f"The training is done, but its ranks did not end within {LINGER_SECONDS:g} s.")
        ranks.launcher.kill()
        return True

    def _with_details(self, failure: Failure, ranks: _Ranks) -> Failure:
        """Ask the ranks to end, and add what is only known then, such as exit codes."""
        if failure.kind == "hung":
            failure = with_stacks(failure, self._folder, ranks.server.ranks.values())
        ranks.server.end_all()
        deadline = time.monotonic() + _EXIT_CODE_SECONDS
        while failure.kind == "lost" and time.monotonic() < deadline:
            ranks.server.poll(LOOK_SECONDS)
            self._note_exits(ranks)
            failure = ranks.watch.refresh(failure, time.monotonic())
        if failure.traceback is None and ranks.launcher.last_lines:
            failure = dataclasses.replace(failure, traceback="\n".join(ranks.launcher.last_lines))
        return failure

    def _starts_again_after(self, failure: Failure) -> bool:
        if self._stops or self._requeue_asked:
            return False
        failed_to_join = failure.phase == "joining" and failure.kind in ("user_error", "error", "hung")
        if failed_to_join and self._train_alone(failure):  # does not count as one of the allowed restarts
            return True
        if failure.kind == "user_error" or self._restarts >= self._max_restarts:
            return False
        self._restarts += 1
        self._resume = True  # even without a backup: else models already saved would be taken for an earlier run's
        start = "from the last backup" if self._has_backup() else "from the beginning"
        cause = failure.text if failure.text.endswith((".", "!", "?")) else f"{failure.text}."
        self._callbacks.on_warning(f"{cause} Starting again {start} ({self._restarts} of {self._max_restarts}).")
        return True

    def _tell(self, outcome: Outcome) -> None:
        if isinstance(outcome, Failure):
            self._write_exit("failed", **outcome.record())
            self._callbacks.on_failed(outcome.text)
        elif outcome != "requeued":
            self._write_exit(outcome, rank=self._first_rank)

    def _write_exit(self, status: str, **details: Any) -> None:
        if self._writes_exit:
            try:
                self._folder.write_exit(status, **details)
            except OSError as error:
                self._callbacks.on_warning(f"{self._folder.exit_path} can't be written ({error.strerror}).")

    def _end(self, ranks: _Ranks) -> None:
        """End every rank that is still running: by message, then SIGTERM, then SIGKILL."""
        ranks.server.end_all()
        if ranks.launcher.is_running():
            ranks.launcher.terminate()
        if not ranks.wait(self._grace_seconds):
            ranks.launcher.kill()
            # torchrun's ranks are not our children; an open connection proves that the process id is still theirs
            kill_processes(state.pid for state in ranks.server.ranks.values() if state.is_connected)
            ranks.wait(_REAP_SECONDS)

    def _pass_on_stop(self) -> None:
        if not self._stops or self._has_passed_stop_on:
            return
        self._has_passed_stop_on = True
        try:
            send_command(self._folder, "stop")
        except OSError as error:
            self._callbacks.on_warning(
                f"The stop can't be passed on ({error.strerror}); press Ctrl-C again to stop at once without saving."
            )
        else:
            self._callbacks.on_status(
                "Stopping within two steps; press Ctrl-C again to stop at once without saving"
                if self._stops[0] in STOP_SIGNALS
                else stop_message(self._stops[0])
            )

    def _pass_on_requeue(self, ranks: _Ranks) -> None:
        """Forward the signal itself: ranks that are not ready for it have it blocked."""
        for state in ranks.server.ranks.values() if self._requeue_asked else ():
            if state.is_connected and not state.done and state.pid not in self._asked_to_requeue:
                self._asked_to_requeue.add(state.pid)
                for number in REQUEUE_SIGNALS:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(state.pid, number)

    def _signals_answered(self) -> contextlib.AbstractContextManager[None]:
        """Within the block, the first signal asks the ranks to stop and save; a second one of STOP_SIGNALS kills them.

        The signal by which SLURM announces the end of the job's time makes them write a backup to be resumed later.
        """

        def stop(number: int, frame: object) -> None:
            self._stops.append(number)

        def requeue(number: int, frame: object) -> None:
            self._requeue_asked = True

        return signals_answered(dict.fromkeys(stop_signals(), stop) | dict.fromkeys(requeue_signals(), requeue))


@dataclasses.dataclass(frozen=True)
class _Ranks:
    """The ranks of one attempt: their launcher, the server of their connections, and the watch over them."""

    launcher: Launcher
    server: LifelineServer
    watch: RankWatch

    def have_begun(self) -> bool:
        """Whether any rank has sent a heartbeat, even if that is not read yet."""
        for _ in range(3):  # its connection, its greeting and the heartbeat
            self.server.poll(0)
        return any(state.has_begun for state in self.server.ranks.values())

    def wait(self, seconds: float) -> bool:
        """Wait for all to end; returns whether they did within `seconds`."""
        deadline = time.monotonic() + seconds
        while self.launcher.is_running() or any(state.is_connected for state in self.server.ranks.values()):
            if time.monotonic() > deadline:
                return False
            self.server.poll(LOOK_SECONDS)
        return True
