"""Launches a function on several ranks of this machine, supervised like the ranks of a diffusion training."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.TrainConfig import TrainConfig
from modules.distributed.environments import ATTEMPT_VARIABLE, find_environment, spawn_variables
from modules.engine.arguments import Backend, check_backend, check_count, check_function
from modules.engine.Float32Precision import Float32Precision
from modules.engine.RankContext import RankContext, enter_rank, rank_context
from modules.engine.worker import distributed_train_worker
from modules.launch.launchers import SpawnLauncher
from modules.launch.lifeline import UNGUARDED_EXIT_CODE, Lifeline
from modules.launch.rank import end_process
from modules.launch.run import Outcome, failure_outcome, stop_on
from modules.launch.stacks import dump_stacks_on_request
from modules.launch.Supervisor import FAILED, Supervisor
from modules.machine.devices import list_gpus, num_cores
from modules.machine.ports import LOOPBACK, PORTS_TO_TRY, claim_free_port
from modules.machine.run_shape import ranks_here
from modules.session.atomic import remove_folder
from modules.session.FolderCommands import FolderCommands
from modules.session.printing import print_line, print_text
from modules.session.run_token import new_token
from modules.session.RunFolder import RunFolder
from modules.session.signals import HANGUP_SIGNALS, STOP_SIGNALS
from modules.session.standard_streams import outlast_readers
from modules.session.TerminalCallbacks import TerminalCallbacks
from modules.session.TrainCallbacks import TrainCallbacks
from modules.session.TrainCommands import TrainCommands

if TYPE_CHECKING:
    from modules.launch.launchers import Launcher
    from modules.launch.RankWatch import Failure

FIRST_PORT = 12355
PROGRAM_NAME, RESULT_NAME = "program", "result"  # function with arguments, and what it has returned, in the run folder


class RanksFailed(UserError):
    """record: what exit.json says of it, such as `rank`, `kind` and `phase`. folder: with the records of the launch."""

    def __init__(self, record: Mapping[str, Any], folder: Path):
        super().__init__(record["text"])
        self.record, self.folder = record, folder


def launch_distributed_training(
    train_fn: Callable[..., Any] = distributed_train_worker,
    world_size: int | None = None,
    backend: Backend | None = None,
    **kwargs: Any,
) -> Any:
    """Calls `train_fn(rank, world_size, **kwargs)` on `world_size` ranks of this machine; returns rank 0's result.

        launch_distributed_training(train, world_size=2, lr=1e-3)  # calls train(rank, 2, lr=1e-3) on each rank

    Call it from the main thread, inside `if __name__ == "__main__":`. A single rank runs in this process. In a process
    that torchrun, accelerate or srun has started as a rank, it calls `train_fn` as that rank and returns its result.
    If the ranks can't join, one process trains alone. If a rank dies, raises or hangs, the others are ended. The first
    Ctrl-C stops training within two steps, with a checkpoint.

    train_fn: by default `distributed_train_worker`.
    world_size: by default the number of GPUs, or 2 without a GPU.
    backend: "nccl" or "gloo"; by default "nccl" with NVIDIA GPUs.
    kwargs: sent to the ranks with cloudpickle, as is train_fn, so lambdas and closures are fine.

    Raises UserError, with a one-sentence message, if something can't be sent or if the ranks have failed.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # this rank is still importing the program
        os._exit(UNGUARDED_EXIT_CODE)
    check_backend(backend)
    check_function("train_fn", train_fn)
    environment = find_environment()
    if environment is not None and environment.world_size > 1:
        return _train_as(environment.rank, environment.world_size, backend, train_fn, kwargs)
    num_ranks = _num_ranks(world_size, backend)
    # inherited by the ranks, which may ask CUDA for its devices while they import the program
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if num_ranks == 1:
        print_line("Training on one device, in this process.")
        return _train_here(train_fn, kwargs)
    return launch_ranks(train_fn, num_ranks, backend, kwargs, TerminalCallbacks(sys.stderr))


def launch_ranks(
    train_fn: Callable[..., Any],
    num_ranks: int,
    backend: Backend | None,
    kwargs: Mapping[str, Any],
    callbacks: TrainCallbacks,
    falls_back: bool = True,
) -> Any:
    """Calls `train_fn(rank, num_ranks, **kwargs)` on new ranks; returns rank 0's result, None if they were stopped.

    callbacks: told about stops, warnings and failures. falls_back: whether one process trains alone if they can't join.
    Raises RanksFailed, and UserError if something can't be sent.
    """
    path = Path(tempfile.mkdtemp(prefix="chorus-launch-"))
    code = FAILED
    try:
        # by a file: through the pipe to a rank that is still importing, they would hold up those after it
        (path / PROGRAM_NAME).write_bytes(_packed(train_fn, kwargs))
        code = _supervise(RunFolder(path), num_ranks, backend, callbacks, falls_back)
        if code == FAILED:
            record = RunFolder(path).read_exit()
            assert record is not None  # a supervisor that returns has written it
            raise RanksFailed(record, path)
        return _unpacked((path / RESULT_NAME).read_bytes()) if (path / RESULT_NAME).exists() else None
    finally:
        if code == FAILED:
            print_line(f"The records of this launch are in {path}.", sys.stderr)
        else:
            remove_folder(path)


def _train_here(train_fn: Callable[..., Any], kwargs: dict) -> Any:
    """Calls `train_fn` as the only rank; Ctrl-C has the effect that it has on several."""
    outer, context = rank_context(), RankContext()
    enter_rank(context)
    try:
        with stop_on((signal.SIGINT,), context.commands, TerminalCallbacks(sys.stderr)):
            return train_fn(0, 1, **kwargs)
    finally:
        enter_rank(outer)


def _supervise(
    folder: RunFolder, num_ranks: int, backend: Backend | None, callbacks: TrainCallbacks, falls_back: bool
) -> int:
    """Runs the ranks and returns the exit code of Supervisor."""
    folder.create()
    started = time.time()
    with contextlib.ExitStack() as claims:

        def make_launcher(attempt: int, resume: bool) -> Launcher:
            claims.close()
            claimed = claim_free_port(FIRST_PORT, LOOPBACK)
            if claimed is None:
                raise UserError(
                    f"Port {FIRST_PORT} and the {PORTS_TO_TRY} after it are in use: end the programs that use them."
                )
            port, claim = claimed
            claims.enter_context(claim)
            start_method = multiprocessing.get_start_method(allow_none=True)
            arguments = (str(folder.path), started, num_ranks, port, secrets.token_hex(8), backend, start_method)
            return SpawnLauncher(run_rank, arguments, num_ranks)

        def train_alone(failure: Failure) -> bool:
            nonlocal num_ranks
            if not falls_back:
                return False
            callbacks.on_warning(f"{failure.text} One process trains alone instead, with the batch size of one rank.")
            num_ranks = 1
            return True

        return Supervisor(folder, make_launcher, callbacks, token=new_token(), train_alone=train_alone).run()


def run_rank(
    local_rank: int,
    variables: Mapping[str, str],
    folder_path: str,
    started: float,
    num_ranks: int,
    port: int,
    run_id: str,
    backend: Backend | None,
    start_method: str | None,
) -> None:
    """The main function of each rank that `launch_distributed_training` starts.

    variables: environment variables from the supervisor. started: Unix time of the launch. start_method: that of
    the program's own processes; None: the platform's.
    """
    for number in (*STOP_SIGNALS, *HANGUP_SIGNALS):  # they may reach every process, but the supervisor handles them
        signal.signal(number, signal.SIG_IGN)
    outlast_readers()
    # a spawned process would spawn its own, such as the workers of data loaders, which then import everything again
    multiprocessing.set_start_method(start_method or multiprocessing.get_all_start_methods()[0], force=True)
    attempt = int(variables[ATTEMPT_VARIABLE])
    os.environ.update(variables)
    os.environ.update(spawn_variables(local_rank, num_ranks, port, run_id, attempt=attempt))
    folder, lifeline = RunFolder(folder_path), Lifeline.from_environment(local_rank)
    assert lifeline is not None  # the supervisor has passed its address in `variables`
    dump_stacks_on_request(folder.stacks_path(local_rank))
    callbacks = TrainCallbacks()
    commands = FolderCommands(folder, callbacks, run_started=started) if local_rank == 0 else TrainCommands()
    context = RankContext(lifeline, commands)
    enter_rank(context)
    try:
        precision, train_fn, kwargs = _unpacked((folder.path / PROGRAM_NAME).read_bytes())
        precision.set()
        with stop_on((signal.SIGTERM,), commands, callbacks):
            result = _train_as(local_rank, num_ranks, backend, train_fn, kwargs)
        if local_rank == 0:
            (folder.path / RESULT_NAME).write_bytes(_packed_result(result))
        status: Literal["finished", "stopped"] = "stopped" if context.stopped else "finished"
        outcome = Outcome(status, context.step)
        lifeline.done(status, context.step)
    except Exception as error:
        outcome = failure_outcome(error)
        if not outcome.is_user_error and not outcome.is_symptom:
            print_text(outcome.traceback, sys.stderr)
        lifeline.failed(outcome.text, outcome.traceback, outcome.is_user_error, outcome.is_symptom)
    end_process(outcome, lifeline)


def _train_as(rank: int, world_size: int, backend: Backend | None, train_fn: Callable[..., Any], kwargs: dict) -> Any:
    """Joins the ranks and calls `train_fn`. Joining first tells a failure to join apart from a failed training."""
    from modules.distributed.setup_distributed import abandon_distributed
    from modules.engine.TrainingEngine import TrainingEngine

    if world_size > 1:
        TrainingEngine.setup_distributed(rank, world_size, backend)
    try:
        result = train_fn(rank, world_size, **kwargs)
    except BaseException:
        abandon_distributed()  # the caller may catch it and end in peace, for which rank 0 would wait for the others
        raise
    TrainingEngine.cleanup_distributed()
    return result


def _num_ranks(world_size: int | None, backend: Backend | None) -> int:
    gpus = list_gpus()
    by_default = ranks_here(TrainConfig(enable_multi_gpu=True), gpus, num_cores())
    if world_size is None:
        return by_default
    if world_size == 0 and not gpus:
        raise UserError(
            "world_size 0: there is no GPU; pass None for two ranks on the CPU, or 1 to train in this process."
        )
    check_count("world_size", world_size)
    if gpus and world_size > by_default and backend != "gloo":
        raise UserError(
            f"world_size {world_size}: {counted(by_default, 'GPU is', 'GPUs are')} there, which NCCL's ranks can't "
            f"share; use at most {by_default}, or backend='gloo'."
        )
    return world_size


def _packed(train_fn: Callable[..., Any], kwargs: Mapping[str, Any]) -> bytes:
    """This process's precision, the function and its arguments as bytes.

    Raises UserError that names an object which can't be pickled.
    """
    import cloudpickle

    for name, value in {"train_fn": train_fn, **kwargs}.items():
        try:
            cloudpickle.dumps(value)
        except Exception as error:  # whatever the object's own code raises
            raise UserError(
                f"{name} can't be sent to the ranks ({type(error).__name__}: {error}): create it inside train_fn."
            ) from error
    return cloudpickle.dumps((Float32Precision.of_this_process(), train_fn, dict(kwargs)))


def _packed_result(result: Any) -> bytes:
    import cloudpickle

    try:
        return cloudpickle.dumps(result)
    except Exception as error:
        raise UserError(
            f"The result of train_fn can't be sent back ({type(error).__name__}: {error}): return plain data."
        ) from error


def _unpacked(data: bytes) -> Any:
    """Unpickles only what this program has just packed, from memory or from a folder that only this user can access."""
    import cloudpickle

    return cloudpickle.loads(data)
