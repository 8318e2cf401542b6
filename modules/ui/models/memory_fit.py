"""Whether the next run fits into the memory of its GPUs, and the settings with which it would. No Tk."""

from __future__ import annotations

from dataclasses import dataclass

from modules.config.problems import Remedy
from modules.config.TrainConfig import TrainConfig
from modules.machine.memory_estimate import GIB, room_for_presets
from modules.machine.memory_remedy import memory_remedy
from modules.machine.run_shape import chosen_gpus
from modules.machine.strategy import with_strategy
from modules.machine.system_memory import room_in_ram
from modules.ui.models.DeviceModel import DeviceModel


@dataclass(frozen=True)
class MemoryFit:
    """text: in words. remedy: what would make it fit; None if it fits, or if nothing would."""

    text: str
    fits: bool
    remedy: Remedy | None = None


def memory_of_gpus(config: TrainConfig, devices: DeviceModel) -> int | None:
    """The memory in GB of the smallest GPU that trains; None if no GPU does, or its memory is not known."""
    sizes = [gpu.memory_bytes for gpu in chosen_gpus(config, devices.gpus) if gpu.memory_bytes]
    return round(min(sizes) / GIB) if sizes else None


def memory_fit(config: TrainConfig, devices: DeviceModel, memory: int) -> MemoryFit | None:
    """Whether the run fits into GPUs with `memory` GB, with what a preset for them leaves to the system; None for a
    family of unknown size."""
    needed, available = devices.needed_bytes(config), room_for_presets(memory)
    if needed is None:
        return None
    if needed <= available:
        return MemoryFit(f"Fits {memory} GB", fits=True)
    shape = devices.shape(config)
    run, num_ranks = (with_strategy(config, shape), shape.num_ranks) if shape else (config, 1)
    ranks_here = shape.ranks_per_node if shape else 1
    room = None
    if devices.machine and shape:
        ram = devices.machine.ram_bytes
        room = room_in_ram(run, ram, num_ranks, ranks_here, devices.base_bytes)
    remedy = memory_remedy(run, num_ranks, available, devices.base_bytes, room, ranks_here)
    start = f"Needs {needed / GIB:.1f} GiB; {memory} GB leave {available / GIB:.1f} for a run"
    if remedy is None:
        return MemoryFit(f"{start}. No settings make it fit: choose another model or method.", fits=False)
    return MemoryFit(f"{start}. It fits with {remedy.text.removeprefix('Use ')}.", fits=False, remedy=remedy)
