"""Estimate the system memory that ranks on GPUs need for what they keep there in place of GPU memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from modules.config.families import load_families
from modules.machine.architectures import load_architectures
from modules.machine.memory.RunMemory import RunMemory

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

LIBRARY_BYTES = 0.4 * 2**30
"""System memory of a process: 0.33 GiB after importing torch and diffusers, 0.47 GiB in the demo."""
_OTHER_BYTES = 2 * 2**30  # for the operating system and what else runs


def kept_in_ram(config: TrainConfig, num_ranks: int = 1, base_bytes: int | None = None) -> dict[str, float]:
    """Setting -> bytes that it lets a rank on a GPU keep in system memory. Empty for a family of unknown size.

    num_ranks: over all machines. base_bytes: size of the base's files, to which the weights are scaled down if they are
    smaller than the family's model; None: unknown.
    """
    model = load_architectures().get(config.family)
    if model is None:
        return {}
    typical = load_families()[config.family].typical_bytes
    share = min(1.0, 2 * base_bytes / typical) if base_bytes else 1.0  # as in `needed_bytes`
    run = RunMemory(config, model, num_ranks)
    found = {"model.activation_offloading": run.offloaded}
    if run.method.uses_denoiser:
        found["model.blocks_to_swap"] = share * run.swapped
    if config.optimizer.state_in_ram:
        state = run.num_trained * run.state_bytes
        found["optimizer.state_in_ram"] = share * state / (num_ranks if config.ddp_shard_optimizer else 1)
    return {path: size for path, size in found.items() if size}


def kept_bytes(config: TrainConfig, num_ranks: int = 1, base_bytes: int | None = None) -> float:
    """The sum of `kept_in_ram`."""
    return sum(kept_in_ram(config, num_ranks, base_bytes).values())


def room_in_ram(ram_bytes: int | None, ranks_here: int) -> float | None:
    """The bytes that each rank may keep in system memory; None if it is unknown. ram_bytes: of the machine."""
    return None if ram_bytes is None else max(0.0, (ram_bytes - _OTHER_BYTES) / ranks_here - LIBRARY_BYTES)


def most_swapped(config: TrainConfig, num_ranks: int, room: float | None, base_bytes: int | None = None) -> int:
    """The largest number of swapped blocks for which a rank has room in system memory; None: it is unknown.

    A family of unknown size swaps none.
    """
    model = load_architectures().get(config.family)
    if model is None:
        return 0
    for count in range(model.blocks.count, 0, -1):
        swapping = replace(config, model=replace(config.model, blocks_to_swap=count))
        if room is None or kept_bytes(swapping, num_ranks, base_bytes) <= room:
            return count
    return 0
