"""Joining a run whose ranks were started by torchrun, accelerate or srun: this process is one of them."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from modules.config.errors import UserError
from modules.config.visible_text import visible_text
from modules.launch.launchers import kill_processes
from modules.launch.lifeline import LOST_EXIT_CODE, Lifeline, LifelineServer
from modules.launch.parent_watch import wait_for_end_of
from modules.launch.rank import end_process, train_as_rank
from modules.launch.RankWatch import watch_in_thread
from modules.launch.run import record_end
from modules.launch.stacks import with_stacks
from modules.loggers.WebhookLogger import tell_end
from modules.machine.ports import LOOPBACK
from modules.session.FolderCommands import STARTED_VARIABLE
from modules.session.printing import print_text
from modules.session.run_token import sign
from modules.session.RunFolder import RunFolder
from modules.session.signals import remember_signals

if TYPE_CHECKING:
    from modules.distributed.environments import RankEnvironment
    from modules.distributed.SignedStore import SignedStore
    from modules.launch.plan import JoinPlan
    from modules.launch.RankWatch import Failure
    from modules.trainer.checks import CheckedStart

VERDICT_SECONDS = 5.0
REFUSAL_SECONDS = 2.0  # for one rank to print what is wrong before the launcher ends it because of the others
READ_SECONDS = 10.0  # for the others to read a refusal of rank 0
START_SECONDS = 300.0  # for rank 0 to take the run folder, and for the watch of a machine to start
POLL_SECONDS = 0.02
REFUSED = 2  # the exit code for any other invalid setting, too


def join_training(plan: JoinPlan, checked: CheckedStart | None = None) -> NoReturn:
    """Train as the rank that a launcher has assigned to this process, then exit: with 0 if finished or stopped.

    Unless the launcher itself runs under a supervisor of Chorus, the ranks of a machine watch each other.
    checked: as for `prepare_run`.
    Raises UserError for what can be refused before the ranks have met.
    """
    environment = plan.environment
    started = float(os.environ.get(STARTED_VARIABLE) or time.time())
    lifeline, watch = Lifeline.from_environment(environment.rank), None
    is_supervised = lifeline is not None
    remember_signals(plan.requeue_signals)
    folder = RunFolder(plan.config.workspace_dir)
    held = contextlib.ExitStack()  # until the process ends
    if lifeline is None:
        launcher = LauncherWatch(environment.rank)
        if environment.has_store:  # else the parent may be a shell that started the rank by hand and may exit
            launcher.start()
        lifeline, watch = _meet(plan, folder, held)
        launcher.folder = folder
    # even after the training: torchrun's SIGTERM to all others must not preempt the verdict
    remember_signals(plan.stop_signals)
    outcome = train_as_rank(plan, lifeline, started, checked)
    if outcome.status == "failed":
        if outcome.error is not None and not outcome.is_symptom:  # torchrun takes the earliest one as the cause
            _tell_torchrun(outcome.error)
        if not is_supervised:  # the verdict ends this process; it may come from one of its own threads
            time.sleep(VERDICT_SECONDS)
    elif not is_supervised and environment.rank == 0:
        record_end(folder, outcome)
        tell_end(folder, plan.config, since=started)
    if watch is not None and outcome.status != "failed" and not outcome.at_once:
        watch.join()  # it must outlive the other ranks, which would take its end for a failure
    if is_supervised:
        outcome = replace(outcome, requeues=False)  # the supervisor does that
    end_process(outcome, lifeline)


def _meet(plan: JoinPlan, folder: RunFolder, held: contextlib.ExitStack) -> tuple[Lifeline, threading.Thread | None]:
    """Join the process group, let rank 0 prepare the run folder, and connect this machine's ranks to their watch.

    Also returns the thread of the watch if this rank hosts it.
    """
    from modules.distributed.setup_distributed import run_store, setup_distributed

    environment = plan.environment
    setup_distributed(plan.config, tell=None)  # which devices train is reported later, when there is a log
    store = run_store()
    refusal = ""
    if environment.rank == 0:
        refusal = _take_folder(folder, plan.resume, held)
        store.set("is_refused", bool(refusal))  # the text stays here, as it contains a path
    if store.wait_for("is_refused", START_SECONDS):
        _end_refused(environment, store, refusal)
    return _connect(environment, folder, store)


def _end_refused(environment: RankEnvironment, store: SignedStore, refusal: str) -> NoReturn:
    """Raises UserError on rank 0, once the others have read the refusal: the store may end with its process."""
    if environment.rank > 0:
        store.set(f"refused/{environment.rank}", True)
        time.sleep(REFUSAL_SECONDS)
        raise SystemExit(REFUSED)
    deadline = time.monotonic() + READ_SECONDS
    others = range(1, environment.world_size)
    while not all(store.has(f"refused/{rank}") for rank in others) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    raise UserError(refusal)


def _take_folder(folder: RunFolder, resume: bool, held: contextlib.ExitStack) -> str:
    """Take the run folder. Returns why that is refused, or ""."""
    try:
        if not resume:
            folder.refuse_earlier_run()
        folder.create()
        held.enter_context(folder.held())
    except (UserError, OSError) as error:
        return str(error)
    return ""


def _connect(
    environment: RankEnvironment, folder: RunFolder, store: SignedStore
) -> tuple[Lifeline, threading.Thread | None]:
    """Connect this rank to the watch over its machine, which local rank 0 runs in a thread.

    Of the watch only the port lies in the store, where nobody but the ranks of this machine can have written it.
    """
    from modules.distributed.setup_distributed import machine_key

    leader = environment.rank - environment.local_rank
    ranks = range(leader, leader + environment.local_world_size)
    watch = None
    with machine_key() as key:
        token = sign(key, b"lifeline", str(environment.node_rank).encode())
        store = store.within(f"node-{environment.node_rank}").signed_with(key)
        if environment.local_rank == 0:
            if environment.rank > 0:
                folder.create()  # this machine may not share rank 0's disk
            server = LifelineServer(token)
            watch = watch_in_thread(server, lambda failure: _tell(failure, folder, server), ranks)
            store.set("watch_port", server.port)
        lifeline = Lifeline(f"{LOOPBACK}:{store.wait_for('watch_port', START_SECONDS)}", token, environment.rank)
        lifeline.on_lost = lambda: _end_with_watch(folder, leader)
        store.set(f"is_watched/{environment.rank}", True)
        for rank in ranks if watch else ():
            store.wait_for(f"is_watched/{rank}", START_SECONDS)
    return lifeline, watch


def _tell(failure: Failure, folder: RunFolder, server: LifelineServer) -> None:
    """Record a verdict in exit.json and print it."""
    if failure.kind == "hung":
        failure = with_stacks(failure, folder, server.ranks.values())
    if failure.is_symptom:
        time.sleep(1.0)  # the machine of the failed rank writes exit.json
    writes = not failure.is_symptom or folder.read_exit() is None
    if writes:
        _write_failure(folder, failure.record())
    if failure.kind == "hung" and (state := server.ranks.get(failure.rank)) and state.is_connected:
        kill_processes([state.pid])  # a suspended process reads no message
    if writes:
        tell_end(folder, most_seconds=VERDICT_SECONDS - 2.0)


def _end_with_watch(folder: RunFolder, leader: int) -> None:
    """Called when the connection to the rank that hosts the watch ends: by its verdict or by its own death."""
    if folder.read_exit() is None:
        text = f"Rank {leader} ended without saying why; see log/rank-{leader}.log."
        _write_failure(folder, {"rank": leader, "kind": "lost", "text": text})
    os._exit(LOST_EXIT_CODE)


def _write_failure(folder: RunFolder, record: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        folder.write_exit("failed", **record)
    print_text(f"Failed: {record['text']}", sys.stderr)


class LauncherWatch(threading.Thread):
    """Ends this process when its launcher is gone, so that no rank trains on alone or waits for others forever.

    folder: where to record that, once it belongs to this run.
    """

    def __init__(self, rank: int):
        super().__init__(name="launcher watch", daemon=True)
        self.folder: RunFolder | None = None
        self._rank = rank
        self._launcher = os.getppid()

    def run(self) -> None:
        wait_for_end_of(self._launcher)
        if self.folder is not None and self.folder.read_exit() is None:
            text = "The process that started the ranks is gone, so they have ended."
            _write_failure(self.folder, {"rank": self._rank, "kind": "lost", "text": text})
        os._exit(LOST_EXIT_CODE)


def _tell_torchrun(error: Exception) -> None:
    """Report `error` for the summary that torchrun prints. Does nothing under another launcher."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    parts = error.args  # torchrun prints them verbatim
    error.args = tuple(visible_text(part) if isinstance(part, str) else part for part in parts)
    try:
        raise error
    except Exception as raised:  # torchrun records the traceback of the exception being handled
        with contextlib.suppress(OSError):  # its folder is gone or the disk full: the record is only a copy
            get_error_handler().record_exception(raised)
