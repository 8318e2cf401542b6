"""The summary of a run, as `scripts/train.py --dry-run` prints it."""

from __future__ import annotations

from dataclasses import replace

from modules.config.TrainConfig import TrainConfig
from modules.data.run_summary import summarize
from modules.machine.devices import Gpu
from modules.machine.Machine import Machine
from modules.machine.run_shape import run_shape
from modules.trainer.checks import check_start


def summary_text(config: TrainConfig, num_ranks: int = 1, resume: bool = False, gpus: int = 0) -> str:
    """A line for each entry and warning, of a run on `num_ranks` CPU cores, or on `gpus`.

    Raises UserError if it would be refused.
    """
    config = replace(config, enable_multi_gpu=num_ranks > 1, world_size=num_ranks)
    checked = check_start(config, num_ranks, resume)
    shape = run_shape(
        config,
        Machine(tuple(Gpu(number, "GPU", f"GPU-{number}", 2**34, number) for number in range(gpus)), cores=num_ranks),
    )
    return summarize(config, shape, checked.base, checked.warnings, resume).text()
