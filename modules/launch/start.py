"""Starts a run of settings in the way that they, and whoever started this process, ask for."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from modules.config.errors import UserError
from modules.distributed.environments import find_environment, is_by_accelerate, lone_accelerate
from modules.distributed.Heartbeat import read_limits
from modules.launch.accelerate import check_accelerate, launcher_words
from modules.launch.join import REFUSED, as_found, join_training
from modules.launch.lifeline import LIFELINE_VARIABLE
from modules.launch.run import run_training
from modules.launch.supervise import supervise_training
from modules.machine.devices import list_gpus
from modules.machine.node_check import refused_together
from modules.machine.run_shape import uses_torchrun
from modules.session.printing import print_line
from modules.session.slurm import was_requeued
from modules.session.standard_streams import outlast_readers
from modules.trainer.checks import check_before_start, check_own_start

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.distributed.environments import RankEnvironment

REFUSAL_SECONDS = 2.0  # for one rank to say what is wrong, before the launcher ends it because of the others


def start_training(config: TrainConfig, resume: bool = False, supervise: bool = False) -> int:
    """Trains to the end and returns the exit code: 0 finished, 1 failed, 130 stopped, 75 to be run again by SLURM.

    In this process; as one of the ranks that a launcher has started; or above ranks of its own, from the main thread.
    supervise: always the last of these, on one device too, and without torchrun: what the window wants.
    Raises UserError for what can be said before a rank starts.
    """
    outlast_readers()
    # before anything asks CUDA: device_indexes count as session/devices.py lists the GPUs
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    environment = None if supervise else find_environment()
    if not supervise:
        resume = resume or was_requeued() or (environment is not None and environment.attempt > 0)
    with _refused_once(config, environment):
        if is_by_accelerate() and not supervise:
            check_accelerate(config, has_gpu=bool(list_gpus()), words=launcher_words())
        num_ranks = _check(config, environment, resume)
    if supervise:
        return supervise_training(config, num_ranks, resume)
    if environment is not None and environment.world_size > 1:
        return join_training(config, environment, resume)
    if lone_accelerate():
        print(
            "Warning: accelerate has started one process, as it does for distributed_type MULTI_CPU: use MULTI_GPU, "
            "also on CPUs, as resources/accelerate_config.yaml does.",
            file=sys.stderr,
        )
    if environment is not None or not config.enable_multi_gpu:
        return run_training(config, resume)
    if num_ranks * config.num_nodes == 1:
        print("Warning: enable_multi_gpu is on, but there is one device, which trains alone.", file=sys.stderr)
        return run_training(config, resume)
    return supervise_training(config, num_ranks, resume, by_torchrun=uses_torchrun(config))


def _check(config: TrainConfig, environment: RankEnvironment | None, resume: bool) -> int:
    """The ranks of this machine. Raises UserError for what the dry run refuses too."""
    if environment is None:
        num_ranks, _ = check_own_start(config, resume)  # rank 0 gives the warnings, whoever has started it
        return num_ranks
    if LIFELINE_VARIABLE in os.environ or environment.num_nodes > 1:
        # a supervisor has checked; and for a machine that refuses alone, the others would wait for minutes
        read_limits()
    else:
        check_before_start(as_found(config, environment), environment.world_size, resume)
    return environment.local_world_size


@contextlib.contextmanager
def _refused_once(config: TrainConfig, environment: RankEnvironment | None) -> Iterator[None]:
    """What is refused inside, as a UserError, is so by all ranks of a launcher: the first of each machine says it."""
    if environment is None:
        with refused_together(config, _say):
            yield
        return
    try:
        yield
    except UserError:
        if environment.local_rank == 0:
            raise
        time.sleep(REFUSAL_SECONDS)
        raise SystemExit(REFUSED) from None


def _say(text: str) -> None:
    print_line(text, sys.stderr)
