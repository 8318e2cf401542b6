"""Start a run in the way that the settings and this process's launcher ask for."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from modules.config.errors import UserError
from modules.distributed.environments import find_environment
from modules.launch.accelerate import launcher_arguments
from modules.launch.check_plan import check_plan
from modules.launch.join import REFUSAL_SECONDS, REFUSED, join_training
from modules.launch.node_check import refused_together
from modules.launch.plan import JoinPlan, SupervisePlan, plan_launch
from modules.launch.run import run_training
from modules.launch.supervise import supervise_training
from modules.machine.Machine import read_machine
from modules.session.printing import print_line
from modules.session.signals import forget_early_signals, stop_signals
from modules.session.standard_streams import outlast_readers

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.launch.WaitingRanks import WaitingRanks


def start_training(
    config: TrainConfig,
    resume: bool = False,
    supervise: bool = False,
    given: Collection[str] | None = None,
    waiting: WaitingRanks | None = None,
) -> int:
    """Train to the end and return the exit code: 0 finished, 1 failed, 130 stopped, 75 to be requeued by SLURM.

    The training runs in this process, as one of the ranks that a launcher has started, or in ranks that this process
    starts, for which it has to be called from the main thread.
    supervise: always start ranks, even on one device, and without torchrun, as the window needs it.
    given: paths of the settings that the user has set, which accelerate must not contradict; None: all of them.
    waiting: ranks that may be taken instead of new ones, if this process spawns any.
    Raises UserError for what can be refused before a rank starts.
    """
    outlast_readers()
    # before CUDA is initialized: device_indexes refer to the GPUs as machine/devices.py lists them
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    with _refused_once(config, supervise):
        plan = plan_launch(
            config,
            os.environ,
            read_machine(),
            resume=resume,
            supervise=supervise,
            given=given,
            arguments=launcher_arguments(),
            stop_signals=stop_signals(),
        )
        if isinstance(plan, JoinPlan):
            forget_early_signals()  # its launcher must be able to end it while it waits for the other ranks
        checked, _ = check_plan(plan)  # rank 0 prints the warnings, whoever started it
    for note in plan.notes if not isinstance(plan, JoinPlan) or plan.environment.local_rank == 0 else ():
        _say(note)
    for warning in plan.warnings:
        _say(f"Warning: {warning}")
    if isinstance(plan, JoinPlan):
        return join_training(plan, checked)
    if isinstance(plan, SupervisePlan):
        return supervise_training(plan, waiting)
    return run_training(plan, checked)


@contextlib.contextmanager
def _refused_once(config: TrainConfig, supervise: bool) -> Iterator[None]:
    """A UserError in the block is raised by all ranks of a launcher: only the first of each machine prints it."""
    try:
        yield
    except UserError:
        environment = None if supervise else find_environment()
        if environment is None:
            with refused_together(config, _say):
                raise
        if environment.local_rank == 0:
            raise
        time.sleep(REFUSAL_SECONDS)
        raise SystemExit(REFUSED) from None


def _say(text: str) -> None:
    print_line(text, sys.stderr)
