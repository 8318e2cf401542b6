"""A run whose ranks torchrun, accelerate or srun has started: this process is one of them."""

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
from modules.launch.run import Outcome, record_end
from modules.launch.stacks import with_stacks
from modules.session.FolderCommands import STARTED_VARIABLE
from modules.session.printing import print_text
from modules.session.RunFolder import RunFolder
from modules.session.RunLock import RunLock
from modules.session.signals import remember_signals

if TYPE_CHECKING:
    from torch.distributed import Store

    from modules.config.TrainConfig import TrainConfig
    from modules.distributed.environments import RankEnvironment
    from modules.launch.plan import LaunchPlan
    from modules.launch.RankWatch import Failure

VERDICT_SECONDS = 5.0
REFUSED = 2  # as for every other mistake in the settings


def join_training(config: TrainConfig, plan: LaunchPlan) -> NoReturn:
    """Trains as the rank that a launcher has made of this process, and ends it: with 0 when finished or stopped.

    Where no supervisor of Chorus is above the launcher, the ranks of a machine watch each other.
    Raises UserError for what can be said before the ranks have met.
    """
    environment, resume = plan.environment, plan.resume
    started = float(os.environ.get(STARTED_VARIABLE) or time.time())
    lifeline, watch = Lifeline.from_environment(environment.rank), None
    is_supervised = lifeline is not None
    stops, requeues = plan.stop_signals, plan.requeue_signals
    remember_signals(requeues)
    config = as_found(config, environment)
    folder = RunFolder(config.workspace_dir)
    held = contextlib.ExitStack()  # until the process ends
    if not is_supervised:
        launcher = LauncherWatch(environment.rank)
        if environment.has_store:  # else it may be a shell, which has started the rank by hand and is free to go
            launcher.start()
        lifeline, watch = _meet(config, environment, folder, resume, held)
        launcher.folder = folder
    remember_signals(stops)  # also after the training: torchrun's SIGTERM to all others must not forestall the verdict
    outcome = train_as_rank(config, environment, lifeline, resume, started, (*stops, *requeues))
    if outcome.status == "failed":
        if not outcome.is_symptom:  # torchrun takes the earliest that it is told for the cause
            _tell_torchrun(outcome)
        if not is_supervised:  # the verdict over the run ends this process, and is given by one of its threads perhaps
            time.sleep(VERDICT_SECONDS)
    elif not is_supervised and environment.rank == 0:
        record_end(folder, outcome)
    if watch is not None and outcome.status != "failed" and not outcome.at_once:
        watch.join()  # it would end with this process, which the other ranks of the machine would take for a failure
    if is_supervised:
        outcome = replace(outcome, requeues=False)  # which the supervisor sees to
    end_process(outcome, lifeline)


def as_found(config: TrainConfig, environment: RankEnvironment) -> TrainConfig:
    """The settings with the ranks that are there, which a launcher decides."""
    return replace(
        config,
        enable_multi_gpu=environment.world_size > 1,
        world_size=environment.local_world_size,
        num_nodes=environment.num_nodes,
        node_rank=environment.node_rank,
        master_addr=environment.master_addr,
    )


def _meet(
    config: TrainConfig, environment: RankEnvironment, folder: RunFolder, resume: bool, held: contextlib.ExitStack
) -> tuple[Lifeline, threading.Thread | None]:
    """Joins the other ranks, lets rank 0 see to the run folder, and connects this machine's ranks to their watch.

    Returns also the thread of the watch, where this rank keeps it.
    """
    from modules.distributed.setup_distributed import run_store, setup_distributed

    setup_distributed(config, tell=None)  # who trains is told when there is a log to tell it to
    store = run_store()
    if environment.rank == 0:
        store.set("refusal", _prepare(folder, resume, held))
    refusal = store.get("refusal").decode()
    if refusal and environment.rank == 0:
        raise UserError(refusal)
    if refusal:  # rank 0 says it
        raise SystemExit(REFUSED)
    return _connect(environment, folder, store)


def _prepare(folder: RunFolder, resume: bool, held: contextlib.ExitStack) -> str:
    """Why the run can't have the folder, or ""."""
    try:
        if not resume:
            folder.refuse_earlier_run()
        folder.create()
        held.enter_context(RunLock(folder.lock_path))
        folder.clear_exit()
    except (UserError, OSError) as error:
        return str(error)
    return ""


def _connect(
    environment: RankEnvironment, folder: RunFolder, store: Store
) -> tuple[Lifeline, threading.Thread | None]:
    """Local rank 0 keeps the watch over the ranks of its machine in a thread."""
    node = environment.node_rank
    leader = environment.rank - environment.local_rank
    watch = None
    if environment.local_rank == 0:
        if environment.rank > 0:
            folder.create()  # this machine may have a disk of its own
        server = LifelineServer()
        ranks = range(leader, leader + environment.local_world_size)
        watch = watch_in_thread(server, lambda failure: _tell(failure, folder, server), ranks)
        store.set(f"lifeline/{node}", f"{server.address} {server.token}")
    address, token = store.get(f"lifeline/{node}").decode().split()
    lifeline = Lifeline(address, token, environment.rank)
    lifeline.on_lost = lambda: _end_with_watch(folder, leader)
    return lifeline, watch


def _tell(failure: Failure, folder: RunFolder, server: LifelineServer) -> None:
    """A verdict over the run: for exit.json and the terminal."""
    if failure.kind == "hung":
        failure = with_stacks(failure, folder, server.ranks.values())
    if failure.is_symptom:
        time.sleep(1.0)  # the machine of the cause writes it
    if not failure.is_symptom or folder.read_exit() is None:
        _write_failure(folder, failure.record())
    if failure.kind == "hung" and (state := server.ranks.get(failure.rank)) and state.is_connected:
        kill_processes([state.pid])  # one that is stopped hears no word


def _end_with_watch(folder: RunFolder, leader: int) -> None:
    """The rank that kept the watch has given a verdict, or is gone itself."""
    if folder.read_exit() is None:
        text = f"Rank {leader} ended without saying why; see log/rank-{leader}.log."
        _write_failure(folder, {"rank": leader, "kind": "lost", "text": text})
    os._exit(LOST_EXIT_CODE)


def _write_failure(folder: RunFolder, record: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        folder.write_exit("failed", **record)
    print_text(f"Failed: {record['text']}", sys.stderr)


class LauncherWatch(threading.Thread):
    """Ends this process when its launcher is gone: no rank is to train on, or to wait for the others for ever.

    folder: where to say so, once it is this run's.
    """

    def __init__(self, rank: int):
        super().__init__(name="launcher watch", daemon=True)
        self.folder: RunFolder | None = None
        self._rank = rank
        self._launcher = os.getppid()

    def run(self) -> None:
        wait_for_end_of(self._launcher)
        if self.folder is not None and self.folder.read_exit() is None:
            text = "The process that had started the ranks is gone: they have ended."
            _write_failure(self.folder, {"rank": self._rank, "kind": "lost", "text": text})
        os._exit(LOST_EXIT_CODE)


def _tell_torchrun(outcome: Outcome) -> None:
    """For the summary that torchrun prints; elsewhere it does nothing."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    parts = outcome.error.args  # torchrun prints them as they are
    outcome.error.args = tuple(visible_text(part) if isinstance(part, str) else part for part in parts)
    try:
        raise outcome.error
    except Exception as error:  # it records the traceback of what is being handled
        with contextlib.suppress(OSError):  # the folder for that is gone, or its disk full: it is but a copy
            get_error_handler().record_exception(error)
