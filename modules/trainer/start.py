"""Starts a run of settings in the way that they, and whoever started this process, ask for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from modules.distributed.environments import find_environment, lone_accelerate
from modules.session.devices import default_num_ranks, list_gpus, num_cores
from modules.trainer.join import join_training
from modules.trainer.run import run_training
from modules.trainer.supervise import supervise_training

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig


def start_training(config: TrainConfig, resume: bool = False) -> int:
    """Trains to the end and returns the exit code: 0 finished, 1 failed, 130 stopped before the end.

    In this process; as one of the ranks that a launcher has started; or above ranks of its own, from the main thread.
    Raises UserError for what can be said before a rank starts.
    """
    environment = find_environment()
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
    num_ranks = default_num_ranks(config, list_gpus(), num_cores())
    if num_ranks * config.num_nodes == 1:
        print("Warning: enable_multi_gpu is on, but there is one device, which trains alone.", file=sys.stderr)
        return run_training(config, resume)
    return supervise_training(config, num_ranks, resume, by_torchrun=config.use_torchrun)
