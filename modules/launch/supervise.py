"""Run several ranks of this machine under a supervisor in this process."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.batch_size import scientific
from modules.config.errors import UserError
from modules.config.files import save_config
from modules.config.installation import ROOT
from modules.distributed.environments import ATTEMPT_VARIABLE, SpawnEnvironment, spawn_variables
from modules.launch.launchers import Launcher, SpawnLauncher, TorchrunLauncher, torchrun_command
from modules.launch.lifeline import Lifeline
from modules.launch.node_check import check_nodes, refused_together
from modules.launch.plan import JoinPlan, SupervisePlan
from modules.launch.rank import end_process, train_as_rank
from modules.launch.run import STOPPED, Outcome, record_end
from modules.launch.Supervisor import Supervisor
from modules.loggers.WebhookLogger import tell_end
from modules.machine.devices import num_cores
from modules.machine.keep_awake import kept_awake
from modules.machine.ports import LOOPBACK, PORTS_TO_TRY, claim_free_port
from modules.session.atomic import make_temporary_folder
from modules.session.backups import newest_usable
from modules.session.EventCallbacks import EventCallbacks
from modules.session.events import EventWriter
from modules.session.FolderCommands import STARTED_VARIABLE, FolderCommands
from modules.session.log_file import log_file
from modules.session.printing import print_line
from modules.session.run_token import new_token
from modules.session.RunFolder import RunFolder
from modules.session.signals import (
    HANGUP_SIGNALS,
    STOP_SIGNALS,
    remember_signals,
    signals_answered,
    signals_remembered,
)
from modules.session.slurm import REQUEUED
from modules.session.standard_streams import outlast_readers
from modules.session.TerminalCallbacks import TerminalCallbacks
from modules.session.TrainCallbacks import CallbackList, TrainCallbacks
from modules.session.TrainCommands import TrainCommands

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.launch.RankWatch import Failure
    from modules.launch.WaitingRanks import WaitingRanks

SETTINGS_NAME = "config.yaml"


def supervise_training(plan: SupervisePlan, waiting: WaitingRanks | None = None) -> int:
    """Start the ranks of this machine, watch them and record how the run ended. Returns the exit code.

    waiting: as for `SpawnLauncher`.
    Must be called from the main thread: spawned ranks end with the thread that started them.
    Raises UserError for what can be refused before a rank starts.
    """
    remember_signals(plan.requeue_signals)
    started = float(os.environ.get(STARTED_VARIABLE) or time.time())  # the window passes on when the user pressed Start
    os.environ[STARTED_VARIABLE] = repr(started)
    if plan.launcher == "torchrun":  # which would limit each rank to one thread
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, num_cores() // plan.num_ranks)))
    folder = RunFolder(plan.config.workspace_dir)
    with contextlib.ExitStack() as stack:
        with refused_together(plan.config, lambda text: print_line(text, sys.stderr)):
            if plan.backend is not None:
                _check_gloo(plan.config.distributed_backend)
            _take_folder(folder, plan, stack)
        callbacks = _callbacks(folder, stack)
        if plan.config.keep_awake:
            stack.enter_context(kept_awake(callbacks.on_status))
        if plan.num_nodes > 1 and not _meet_nodes(plan, folder, callbacks, started):
            if plan.leads:
                folder.write_exit("stopped", rank=0)
            return STOPPED
        starter = _RankStarter(plan, folder, callbacks, started, stack, waiting)
        code = Supervisor(
            folder,
            starter.make_launcher,
            callbacks,
            resume=plan.resume,
            max_restarts=plan.max_restarts,
            has_backup=lambda: newest_usable(folder) is not None,
            first_rank=plan.node_rank * plan.num_ranks,
            writes_exit=plan.leads,
            has_all=plan.num_nodes == 1,
            token=new_token() if plan.num_nodes == 1 else None,
            train_alone=starter.train_alone,
        ).run()
        if code == REQUEUED:
            record_end(folder, Outcome("stopped", requeues=True))
    if plan.leads:
        tell_end(folder, plan.config, since=started)
    return code


class _RankStarter:
    """Makes the launcher of each attempt, and changes the plan where one device has to train alone.

    stack: holds what the ranks need until the end of the run. waiting: as for `SpawnLauncher`.
    """

    def __init__(
        self,
        plan: SupervisePlan,
        folder: RunFolder,
        callbacks: TrainCallbacks,
        started: float,
        stack: contextlib.ExitStack,
        waiting: WaitingRanks | None,
    ):
        self._plan = plan
        self._waiting = waiting
        self._callbacks = callbacks
        self._started = started
        self._claims = stack.enter_context(contextlib.ExitStack())
        self._launch_dir = _launch_dir(plan.config, folder, stack) if plan.launcher == "torchrun" else None

    def make_launcher(self, attempt: int, resume: bool) -> Launcher:
        self._claims.close()  # the port of the previous attempt
        plan = replace(self._plan, resume=resume, port=_free_port(self._plan, self._callbacks, self._claims))
        if plan.launcher == "spawn":
            # a random id would be known to this machine only
            run_id = secrets.token_hex(8) if plan.num_nodes == 1 else "run"
            return SpawnLauncher(run_spawned_rank, (plan, self._started, run_id), plan.num_ranks, self._waiting)
        assert self._launch_dir is not None  # `train_alone` changes the launcher to spawn only
        script = [str(ROOT / "scripts" / "train.py"), "--config", str(self._launch_dir / SETTINGS_NAME)]
        script += ["--resume"] if resume else []
        ends = self._launch_dir / f"ends-{attempt}.json"
        return TorchrunLauncher(torchrun_command(plan, script, self._launch_dir, ends), plan.num_ranks, ends)

    def train_alone(self, failure: Failure) -> bool:
        """Plan a single rank for the next attempt; returns False if that is not allowed."""
        plan = self._plan
        if plan.backend is None or plan.num_nodes > 1:  # the other machines need the ranks of this one
            return False
        self._plan = plan.alone()
        self._callbacks.on_warning(f"{failure.text} One device trains alone instead{_in_other_steps(plan)}.")
        return True


def run_spawned_rank(
    local_rank: int, variables: dict[str, str], plan: SupervisePlan, started: float, run_id: str
) -> None:
    """The main function of each rank that the supervisor spawns.

    variables: environment variables from the supervisor. plan: with the port at which the ranks meet. started: Unix
    time of the run's start. run_id: the same on all machines.
    """
    for number in (*STOP_SIGNALS, *HANGUP_SIGNALS):  # they may reach every process; only the supervisor handles them
        signal.signal(number, signal.SIG_IGN)
    remember_signals(plan.requeue_signals)
    outlast_readers()
    os.environ.update(variables)
    os.environ.update(
        spawn_variables(
            local_rank,
            plan.num_ranks,
            plan.port,
            run_id,
            attempt=int(variables[ATTEMPT_VARIABLE]),
            num_nodes=plan.num_nodes,
            node_rank=plan.node_rank,
            master_addr=plan.config.master_addr,
        )
    )
    environment = SpawnEnvironment.read(os.environ)
    rank = JoinPlan(
        config=plan.config,
        resume=plan.resume,
        stop_signals=(signal.SIGTERM,),
        requeue_signals=plan.requeue_signals,
        environment=environment,
        is_supervised=True,
    )
    lifeline = Lifeline.from_environment(environment.rank)
    assert lifeline is not None  # the supervisor has passed its address in `variables`
    outcome = train_as_rank(rank, lifeline, started)
    end_process(replace(outcome, requeues=False), lifeline)  # the supervisor requeues


def _in_other_steps(plan: SupervisePlan) -> str:
    """How batch size and learning rate change if one rank trains instead of those of `plan`; "" if they do not."""
    shape, rate = plan.shape, plan.shape.rates[0]
    changes = []
    if shape.batch != shape.batch_on_one:
        changes.append(f"{shape.batch_on_one} samples per step instead of {shape.batch}")
    if shape.learning_rate_factor != 1:
        changes.append(f"learning rate {scientific(rate.before)} instead of {scientific(rate.after)}")
    return f", with {' and '.join(changes)}" if changes else ""


def _take_folder(folder: RunFolder, plan: SupervisePlan, stack: contextlib.ExitStack) -> None:
    """Raises UserError if it already holds a run or is in use by one."""
    if plan.leads and not plan.resume:
        folder.refuse_earlier_run()
    folder.create()
    if plan.leads:
        # a signal before or after the training must not prevent the end from being recorded
        stack.enter_context(signals_remembered(plan.stop_signals))
        stack.enter_context(folder.held())


def _launch_dir(config: TrainConfig, folder: RunFolder, stack: contextlib.ExitStack) -> Path:
    """A folder with the settings for torchrun's ranks, removed when `stack` closes. Raises UserError on a full disk.

    The next start removes what a killed run leaves behind. On a shared disk it may also remove the folder of another
    machine, which looks the same, but only after the ranks have met: by then they have read their settings.
    """
    try:
        launch_dir = make_temporary_folder(folder.path / "launch")
        stack.callback(shutil.rmtree, launch_dir, ignore_errors=True)
        save_config(config, launch_dir / SETTINGS_NAME)
    except OSError as error:
        raise UserError.at(
            "workspace_dir",
            f"{str(folder.path)!r} can't be written ({error.strerror}): free some space there, or choose "
            "another folder.",
        ) from error
    return launch_dir


def _callbacks(folder: RunFolder, stack: contextlib.ExitStack) -> TrainCallbacks:
    log = stack.enter_context(log_file(folder.supervisor_log_path))
    events = stack.enter_context(EventWriter(folder.supervisor_event_path, rank=None))
    return CallbackList([TerminalCallbacks(sys.stderr), TerminalCallbacks(log), EventCallbacks(events)])


def _check_gloo(setting: str) -> None:
    """Raises UserError if gloo does not work on this machine, before ranks are started in vain."""
    if sys.platform != "win32":
        return
    from modules.distributed.setup_distributed import gloo_problem

    if problem := gloo_problem():
        raise UserError.at("distributed_backend", f"{setting}: {problem}; switch enable_multi_gpu off.")


def _meet_nodes(plan: SupervisePlan, folder: RunFolder, callbacks: TrainCallbacks, started: float) -> bool:
    """Wait for the other machines, which make the same check; False if a stop was requested. Raises UserError."""
    # on a shared disk machine 0 takes the stop command
    commands = FolderCommands(folder, callbacks, started) if plan.leads else TrainCommands()
    # torchrun counts the ranks of each machine itself; without it all machines need the same number
    ranks = None if plan.launcher == "torchrun" else plan.num_ranks
    with signals_answered(dict.fromkeys(plan.stop_signals, lambda *_: commands.stop())):
        found = check_nodes(
            plan.config, callbacks.on_status, lambda: commands.stopping, resume=plan.resume, ranks=ranks
        )
    for line in found:
        callbacks.on_status(line)
    return bool(found)


def _free_port(plan: SupervisePlan, callbacks: TrainCallbacks, claims: contextlib.ExitStack) -> int:
    """initial_port or, if it is busy on a single machine, the next free port. Reserved until `claims` closes."""
    wanted = plan.port
    if plan.num_nodes > 1:  # the check of the machines has just used it
        return wanted
    claimed = claim_free_port(wanted, LOOPBACK)
    if claimed is None:
        raise UserError.at("initial_port", f"{wanted} and the {PORTS_TO_TRY} after it are busy: set another one.")
    port, claim = claimed
    claims.enter_context(claim)
    if port != wanted:
        callbacks.on_warning(f"Port {wanted} is busy: using {port}.")
    return port
