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
from typing import TYPE_CHECKING, Any

from modules.config.batch_size import global_batch, learning_rate_factor, scientific
from modules.config.errors import UserError
from modules.config.files import config_from_values, save_config, to_values
from modules.config.installation import ROOT
from modules.distributed.environments import ATTEMPT_VARIABLE, find_environment, spawn_variables
from modules.launch.launchers import Launcher, SpawnLauncher, TorchrunLauncher, torchrun_command
from modules.launch.lifeline import Lifeline
from modules.launch.rank import end_process, train_as_rank
from modules.launch.run import STOPPED, Outcome, record_end
from modules.launch.Supervisor import Supervisor
from modules.machine.devices import num_cores
from modules.machine.keep_awake import kept_awake
from modules.machine.node_check import check_nodes, refused_together
from modules.machine.ports import LOOPBACK, PORTS_TO_TRY, claim_free_port
from modules.session.atomic import make_temporary_folder
from modules.session.backups import newest_usable
from modules.session.EventCallbacks import EventCallbacks
from modules.session.events import EventWriter
from modules.session.FolderCommands import STARTED_VARIABLE, FolderCommands
from modules.session.log_file import log_file
from modules.session.printing import print_line
from modules.session.RunFolder import RunFolder
from modules.session.RunLock import RunLock
from modules.session.signals import (
    HANGUP_SIGNALS,
    STOP_SIGNALS,
    remember_signals,
    signals_answered,
    signals_remembered,
    stop_signals,
)
from modules.session.slurm import REQUEUED, requeue_signals
from modules.session.standard_streams import outlast_readers
from modules.session.TerminalCallbacks import TerminalCallbacks
from modules.session.TrainCallbacks import CallbackList, TrainCallbacks
from modules.session.TrainCommands import TrainCommands

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.launch.plan import LaunchPlan
    from modules.launch.RankWatch import Failure

SETTINGS_NAME = "config.yaml"


def supervise_training(config: TrainConfig, plan: LaunchPlan) -> int:
    """Start the ranks of this machine, watch them and record how the run ended. Returns the exit code.

    Must be called from the main thread: spawned ranks end with the thread that started them.
    Raises UserError for what can be refused before a rank starts.
    """
    num_ranks, resume = plan.num_ranks, plan.resume
    by_torchrun = plan.start == "torchrun"
    remember_signals(plan.requeue_signals)
    started = float(os.environ.get(STARTED_VARIABLE) or time.time())  # the window passes on when the user pressed Start
    os.environ[STARTED_VARIABLE] = repr(started)
    if by_torchrun:  # torchrun would limit each rank to one thread
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, num_cores() // num_ranks)))
    machines = _machines(config)
    folder = RunFolder(config.workspace_dir)
    leads = plan.node_rank == 0  # the other machines may share its disk, so they leave the folder to it
    with contextlib.ExitStack() as stack:
        with refused_together(machines, lambda text: print_line(text, sys.stderr)):
            if plan.backend is not None:
                _check_gloo(config)
            _take_folder(folder, leads, plan, stack)
        callbacks = _callbacks(folder, stack)
        if config.keep_awake:
            stack.enter_context(kept_awake(callbacks.on_status))
        if plan.num_nodes > 1:
            ranks = None if by_torchrun else num_ranks  # torchrun counts the ranks of each machine itself
            if not _meet_nodes(machines, folder, callbacks, started, resume, ranks):
                if leads:
                    folder.write_exit("stopped", rank=0)
                return STOPPED
        claims = stack.enter_context(contextlib.ExitStack())
        launch_dir = _launch_dir(config, folder, stack) if by_torchrun else None

        def train_alone(failure: Failure) -> bool:
            nonlocal config, plan
            if plan.backend is None or plan.num_nodes > 1:  # the other machines need the ranks of this one
                return False
            callbacks.on_warning(f"{failure.text} One device trains alone instead{_in_other_steps(config, plan)}.")
            config = replace(config, enable_multi_gpu=False)
            plan = replace(plan, start="spawn", num_ranks=1, devices=plan.devices[:1], backend=None)
            return True

        def make_launcher(attempt: int, resume: bool) -> Launcher:
            claims.close()  # the port of the previous attempt
            port, num_ranks = _free_port(plan, callbacks, claims), plan.num_ranks
            if plan.start == "torchrun":
                script = [str(ROOT / "scripts" / "train.py"), "--config", str(launch_dir / SETTINGS_NAME)]
                script += ["--resume"] if resume else []
                ends = launch_dir / f"ends-{attempt}.json"
                command = torchrun_command(config, script, num_ranks, port, launch_dir, ends)
                return TorchrunLauncher(command, num_ranks, ends)
            # a random id would be known to this machine only
            run_id = secrets.token_hex(8) if plan.num_nodes == 1 else "run"
            arguments = (to_values(config), resume, started, num_ranks, port, run_id)
            return SpawnLauncher(run_distributed_training, arguments, num_ranks)

        code = Supervisor(
            folder,
            make_launcher,
            callbacks,
            resume=resume,
            max_restarts=plan.max_restarts,
            has_backup=lambda: newest_usable(folder) is not None,
            first_rank=plan.node_rank * num_ranks,
            writes_exit=leads,
            train_alone=train_alone,
        ).run()
        if code == REQUEUED:
            record_end(folder, Outcome("stopped", requeues=True))
        return code


def run_distributed_training(
    local_rank: int,
    variables: dict[str, str],
    values: dict[str, Any],
    resume: bool,
    started: float,
    num_ranks: int,
    port: int,
    run_id: str,
) -> None:
    """The main function of each rank that the supervisor spawns.

    variables: environment variables from the supervisor. values: the settings. started: Unix time of the run's start.
    num_ranks: on this machine. run_id: the same on all machines.
    """
    for number in (*STOP_SIGNALS, *HANGUP_SIGNALS):  # they may reach every process; only the supervisor handles them
        signal.signal(number, signal.SIG_IGN)
    remember_signals(requeue_signals())
    outlast_readers()
    config = config_from_values(values)
    attempt = int(variables[ATTEMPT_VARIABLE])
    os.environ.update(variables)
    os.environ.update(spawn_variables(local_rank, _machines(config), num_ranks, port, run_id, attempt))
    environment = find_environment()
    lifeline = Lifeline.from_environment(environment.rank)
    outcome = train_as_rank(config, environment, lifeline, resume, started, (signal.SIGTERM, *requeue_signals()))
    end_process(replace(outcome, requeues=False), lifeline)  # the supervisor requeues


def _in_other_steps(config: TrainConfig, plan: LaunchPlan) -> str:
    """How batch size and learning rate change if one rank trains instead of those of `plan`; "" if they do not."""
    samples = [global_batch(config, ranks) for ranks in (plan.num_ranks, 1)]
    rates = [config.optimizer.learning_rate * learning_rate_factor(config, ranks) for ranks in (plan.num_ranks, 1)]
    changes = []
    if samples[0] != samples[1]:
        changes.append(f"{samples[1]} samples per step in place of {samples[0]}")
    if rates[0] != rates[1]:
        changes.append(f"learning rate {scientific(rates[1])} in place of {scientific(rates[0])}")
    return f", with {' and '.join(changes)}" if changes else ""


def _machines(config: TrainConfig) -> TrainConfig:
    """`config` with the machines that train; with multi-GPU off, the settings about machines are ignored."""
    return config if config.enable_multi_gpu else replace(config, num_nodes=1, node_rank=0)


def _take_folder(folder: RunFolder, leads: bool, plan: LaunchPlan, stack: contextlib.ExitStack) -> None:
    """Raises UserError if it already holds a run or is in use by one."""
    if leads and not plan.resume:
        folder.refuse_earlier_run()
    folder.create()
    if leads:
        stack.enter_context(RunLock(folder.lock_path))
        # a signal before or after the training must not prevent the end from being recorded
        stack.enter_context(signals_remembered(plan.stop_signals))
        folder.clear_exit()


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
        raise UserError(
            f"workspace_dir {str(folder.path)!r} can't be written ({error.strerror}): free some space there, or choose "
            "another folder."
        ) from error
    return launch_dir


def _callbacks(folder: RunFolder, stack: contextlib.ExitStack) -> TrainCallbacks:
    log = stack.enter_context(log_file(folder.supervisor_log_path))
    events = stack.enter_context(EventWriter(folder.supervisor_event_path, rank=None))
    return CallbackList([TerminalCallbacks(sys.stderr), TerminalCallbacks(log), EventCallbacks(events)])


def _check_gloo(config: TrainConfig) -> None:
    """Raises UserError if gloo does not work on this machine, before ranks are started in vain."""
    from modules.distributed.setup_distributed import gloo_problem

    if sys.platform == "win32" and (problem := gloo_problem()):
        raise UserError(f"distributed_backend {config.distributed_backend}: {problem}; switch enable_multi_gpu off.")


def _meet_nodes(
    config: TrainConfig,
    folder: RunFolder,
    callbacks: TrainCallbacks,
    started: float,
    resume: bool,
    ranks: int | None,
) -> bool:
    """Wait for the other machines, which make the same check; False if a stop was requested. Raises UserError.

    ranks: of this machine; given where all machines need the same number.
    """
    # on a shared disk machine 0 takes the stop command
    commands = FolderCommands(folder, callbacks, started) if config.node_rank == 0 else TrainCommands()
    with signals_answered(dict.fromkeys(stop_signals(), lambda *_: commands.stop())):
        found = check_nodes(config, callbacks.on_status, lambda: commands.stopping, resume=resume, ranks=ranks)
    for line in found:
        callbacks.on_status(line)
    return bool(found)


def _free_port(plan: LaunchPlan, callbacks: TrainCallbacks, claims: contextlib.ExitStack) -> int:
    """initial_port or, if it is busy on a single machine, the next free port. Reserved until `claims` closes."""
    wanted = plan.port
    if plan.num_nodes > 1:  # the check of the machines has just used it
        return wanted
    claimed = claim_free_port(wanted, LOOPBACK)
    if claimed is None:
        raise UserError(f"initial_port {wanted} and the {PORTS_TO_TRY} after it are busy: set another one.")
    port, claim = claimed
    claims.enter_context(claim)
    if port != wanted:
        callbacks.on_warning(f"Port {wanted} is busy: using {port}.")
    return port
