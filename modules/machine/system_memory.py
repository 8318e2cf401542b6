"""Estimate the system memory that ranks on GPUs need: for libraries, while loading, and for what they keep there in
place of GPU memory."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from modules.config.families import model_of
from modules.machine.architectures import load_architectures
from modules.machine.memory.PassingMemory import PassingMemory
from modules.machine.memory.RunMemory import RunMemory

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

LIBRARY_BYTES = 0.4 * 2**30
"""System memory of a process: 0.33 GiB after importing torch and diffusers, 0.47 GiB in the demo."""
_CUDA_BYTES = 1.0 * 2**30  # of a process on a GPU, for CUDA's context, cuBLAS and cuDNN; taken to be so, not measured
RANKS_SHARE_SWAPPED = sys.platform == "linux"
"""Whether the ranks on a machine share the memory that blocks are swapped from. See `SharedSlabs`."""
OTHER_BYTES = 2 * 2**30
"""System memory for the operating system and what else runs."""


def kept_in_ram(
    config: TrainConfig, num_ranks: int = 1, ranks_here: int = 1, base_bytes: int | None = None
) -> dict[str, float]:
    """Setting -> bytes that it lets a rank on a GPU keep in system memory; of what the ranks on a machine share, its
    part. Empty for a family of unknown size.

    num_ranks: over all machines. ranks_here: of them, those on this machine. base_bytes: size of the base's files, to
    which the weights are scaled down if they are smaller than the family's model; None: unknown.
    """
    run = _run(config, num_ranks)
    if run is None:
        return {}
    share = _share(config, base_bytes)
    found = {"model.activation_offloading": run.offloaded}
    if run.method.uses_denoiser:
        found["model.blocks_to_swap"] = share * run.swapped / (ranks_here if RANKS_SHARE_SWAPPED else 1)
    if config.optimizer.state_in_ram:
        state = run.num_trained * run.state_bytes
        found["optimizer.state_in_ram"] = share * state / (num_ranks if config.ddp_shard_optimizer else 1)
    return {path: size for path, size in found.items() if size}


def kept_bytes(config: TrainConfig, num_ranks: int = 1, ranks_here: int = 1, base_bytes: int | None = None) -> float:
    """The sum of `kept_in_ram`."""
    return sum(kept_in_ram(config, num_ranks, ranks_here, base_bytes).values())


def passing_in_ram(
    config: TrainConfig, num_ranks: int = 1, base_bytes: int | None = None, is_first: bool = True
) -> dict[str, float]:
    """Setting -> bytes of system memory that a rank on a GPU takes for a time: to load the base model, for the copy
    that a backup is written from, and to save the model. At most one of them is taken at once.

    is_first: whether it is the first rank, which saves. Files that are mapped into memory don't count. For the other
    arguments see `kept_in_ram`.
    """
    run = _run(config, num_ranks)
    if run is None:
        return {}
    passing = PassingMemory(run)
    found = {
        "model.base": passing.loading,
        "backup.every": passing.backed_up if is_first else passing.backed_up_elsewhere,
        "output.name": passing.saving if is_first else 0.0,
    }
    share = _share(config, base_bytes)
    return {path: share * size for path, size in found.items() if size}


def needed_in_ram(
    config: TrainConfig, num_ranks: int = 1, ranks_here: int = 1, base_bytes: int | None = None
) -> float | None:
    """The system memory that the ranks on a machine with GPUs, one of them the first, need together at their peak; None
    for a family of unknown size.

    `without_open_swaps`. For the other arguments see `kept_in_ram`.
    """
    if model_of(config).name not in load_architectures():
        return None
    config = without_open_swaps(config)
    kept = LIBRARY_BYTES + _CUDA_BYTES + kept_bytes(config, num_ranks, ranks_here, base_bytes)
    return ranks_here * kept + _passing_bytes(config, num_ranks, ranks_here, base_bytes)


def without_open_swaps(config: TrainConfig) -> TrainConfig:
    """The settings with no swapped blocks if their number is open: it is chosen when the run starts, to fit."""
    if config.model.blocks_to_swap is not None:
        return config
    return replace(config, model=replace(config.model, blocks_to_swap=0))


def room_in_ram(
    config: TrainConfig,
    ram_bytes: int | None,
    num_ranks: int = 1,
    ranks_here: int = 1,
    base_bytes: int | None = None,
) -> float | None:
    """The bytes that each rank may keep in system memory; None if it is unknown. ram_bytes: of the machine. For the
    other arguments see `needed_in_ram`."""
    if ram_bytes is None:
        return None
    for_all = ram_bytes - OTHER_BYTES - _passing_bytes(config, num_ranks, ranks_here, base_bytes)
    return max(0.0, for_all / ranks_here - LIBRARY_BYTES - _CUDA_BYTES)


def _passing_bytes(config: TrainConfig, num_ranks: int, ranks_here: int, base_bytes: int | None) -> float:
    first, other = (
        max(passing_in_ram(config, num_ranks, base_bytes, is_first).values(), default=0.0) for is_first in (True, False)
    )
    return first + (ranks_here - 1) * other


def most_swapped(
    config: TrainConfig, num_ranks: int, ranks_here: int, room: float | None, base_bytes: int | None = None
) -> int:
    """The largest number of swapped blocks for which a rank has room in system memory; None: it is unknown.

    A family of unknown size swaps none. For the other arguments see `kept_in_ram`.
    """
    model = load_architectures().get(model_of(config).name)
    if model is None:
        return 0
    for count in range(model.blocks.count, 0, -1):
        swapping = replace(config, model=replace(config.model, blocks_to_swap=count))
        if room is None or kept_bytes(swapping, num_ranks, ranks_here, base_bytes) <= room:
            return count
    return 0


def _run(config: TrainConfig, num_ranks: int) -> RunMemory | None:
    model = load_architectures().get(model_of(config).name)
    return None if model is None else RunMemory(config, model, num_ranks)


def _share(config: TrainConfig, base_bytes: int | None) -> float:
    """Of the published model's size that a base model has, as in `needed_bytes`."""
    typical = model_of(config).typical_bytes
    return min(1.0, 2 * base_bytes / typical) if base_bytes else 1.0
