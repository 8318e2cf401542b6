"""The training of one of several ranks, however it was started, and the end of its process."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

from tqdm import tqdm

from modules.launch.run import FINISHED, STOPPED, Outcome, train_rank
from modules.launch.stacks import dump_stacks_on_request
from modules.session.RunFolder import RunFolder
from modules.weights.libraries import import_pipeline

if TYPE_CHECKING:
    from modules.launch.lifeline import Lifeline
    from modules.launch.plan import JoinPlan
    from modules.session.TrainCallbacks import TrainCallbacks
    from modules.session.TrainCommands import TrainCommands
    from modules.trainer.checks import CheckedStart
    from modules.trainer.DistributedTrainer import DistributedTrainer


def train_as_rank(plan: JoinPlan, lifeline: Lifeline, started: float, checked: CheckedStart | None = None) -> Outcome:
    """Train as one of several ranks, and report the outcome over `lifeline`.

    started: as for `train_rank`. checked: as for `prepare_run`.
    """
    environment, folder = plan.environment, RunFolder(plan.config.workspace_dir)
    tqdm.set_lock(threading.RLock())  # the default is a lock between processes, which would outlive os._exit
    dump_stacks_on_request(folder.stacks_path(environment.rank))
    trainers: list[DistributedTrainer] = []

    def make_trainer(callbacks: TrainCallbacks, commands: TrainCommands) -> DistributedTrainer:
        from modules.families.registry import FAMILIES
        from modules.trainer.DistributedTrainer import DistributedTrainer

        arguments = (plan.config, callbacks, commands, environment.local_rank)
        trainers.append(DistributedTrainer(*arguments, resume=plan.resume, heartbeat=lifeline, checked=checked))
        import_pipeline(FAMILIES[plan.config.family].pipeline)  # as run_training does
        return trainers[0]

    outcome = train_rank(
        folder,
        make_trainer,
        started=started,
        config=plan.config,
        resumes=plan.resume,
        rank=environment.rank,
        tells_failure=False,
        signals=(*plan.stop_signals, *plan.requeue_signals),
        node=environment.node_rank if environment.local_rank == 0 else 0,
        node_ranks=environment.local_world_size,
    )
    if outcome.status == "failed":
        lifeline.failed(outcome.text, outcome.traceback, outcome.is_user_error, outcome.is_symptom)
    else:
        lifeline.done("requeued" if outcome.requeues else outcome.status, outcome.step)
        if trainers:
            trainers[0].leave()
    return outcome


def end_process(outcome: Outcome, lifeline: Lifeline) -> NoReturn:
    """Exit this process. A requested stop exits with 0, because launchers treat anything else as a failure."""
    lifeline.close()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    # Not sys.exit: after an error a collective may be pending, and the exit would wait for the other ranks.
    os._exit(FINISHED if outcome.exit_code == STOPPED else outcome.exit_code)
