"""Which GPUs an entry of the queue wants, and which it gets. Without GPUs, each rank takes a core in their place."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from modules.config.counted import counted
from modules.config.errors import UserError

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.machine.Machine import Machine

GpuChoice: TypeAlias = Literal["all"] | int | tuple[int, ...]
"""All GPUs, a number of them, or those with these indexes."""


def read_gpus(text: str) -> GpuChoice:
    """The choice that a person has written: `all`, `2`, `0,2`, or `2,` for number 2 alone. Raises UserError."""
    text = text.strip().lower()
    if text == "all":
        return "all"
    parts = [part.strip() for part in text.split(",")]
    numbers = [int(part) for part in parts if part.isascii() and part.isdigit()]
    if len(numbers) == len([part for part in parts if part]) > 0 and max(numbers) < 1000:
        if "," in text and len(set(numbers)) == len(numbers):
            return tuple(sorted(numbers))
        if "," not in text and numbers[0] > 0:
            return numbers[0]
    raise UserError(f"GPUs {text!r}: write all, a number such as 2, or indexes such as 0,2 (2, for number 2 alone).")


def gpus_text(gpus: GpuChoice) -> str:
    """The choice as `read_gpus` reads it."""
    if isinstance(gpus, tuple):
        return f"{gpus[0]}," if len(gpus) == 1 else ",".join(map(str, gpus))
    return str(gpus)


def describe_gpus(gpus: GpuChoice, has_gpus: bool) -> str:
    """The choice in words, such as "2 GPUs", "GPU 0, 2" and, on a machine that has none, "CPU, 2 processes"."""
    if gpus == "all":
        return "all GPUs" if has_gpus else "CPU, all cores"
    if not has_gpus:
        return f"CPU, {counted(gpus if isinstance(gpus, int) else len(gpus), 'process', 'processes')}"
    return counted(gpus, "GPU") if isinstance(gpus, int) else f"GPU {', '.join(map(str, gpus))}"


def gpus_of(config: TrainConfig) -> GpuChoice:
    """The choice that the settings make."""
    chosen = tuple(sorted(set(config.device_indexes)))
    if not config.enable_multi_gpu:
        return tuple(config.device_indexes[:1]) or 1
    if config.world_size is None:
        return chosen or "all"
    return chosen[: config.world_size] or config.world_size


def all_devices(machine: Machine) -> tuple[int, ...]:
    """What entries share: the indexes of the GPUs, or those of the cores if there is no GPU."""
    return tuple(gpu.index for gpu in machine.gpus) or tuple(range(machine.cores))


def devices_for(gpus: GpuChoice, machine: Machine, taken: Collection[int]) -> tuple[int, ...] | None:
    """The devices that an entry gets while others have `taken` theirs; None if it has to wait.

    Of a choice that the machine can't fulfil, what there is: the run then says what is missing.
    """
    there = all_devices(machine)
    free = [device for device in there if device not in taken]
    if isinstance(gpus, tuple) and machine.gpus:
        return gpus if not set(gpus) & set(taken) else None
    number = len(there) if gpus == "all" else len(gpus) if isinstance(gpus, tuple) else min(gpus, len(there))
    return tuple(free[:number]) if len(free) >= number else None


def with_gpus(config: TrainConfig, gpus: GpuChoice, devices: Sequence[int], machine: Machine) -> TrainConfig:
    """The settings with which the run trains on what it got."""
    if gpus == "all":
        is_several = len(machine.gpus) > 1 or (not machine.gpus and config.enable_multi_gpu)
        return replace(config, enable_multi_gpu=is_several, device_indexes=[], world_size=None)
    if not machine.gpus:
        ranks = gpus if isinstance(gpus, int) else len(gpus)
        return replace(config, enable_multi_gpu=ranks > 1, device_indexes=[], world_size=ranks if ranks > 1 else None)
    wanted = gpus if isinstance(gpus, int) else len(gpus)
    short = wanted if wanted > len(devices) else None
    return replace(config, enable_multi_gpu=wanted > 1, device_indexes=list(devices), world_size=short)
