"""The GPUs of this machine, which of them train, and the resulting shape of the run. No Tk."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.installation import PACKAGE
from modules.config.TrainConfig import TrainConfig
from modules.machine.backend import choose_backend
from modules.machine.devices import UNKNOWN_USAGE, Gpu, GpuUsage, Link, read_usage
from modules.machine.Machine import Machine
from modules.machine.memory.RunMemory import sharing_ranks
from modules.machine.memory_estimate import GIB, needed_bytes
from modules.machine.run_shape import RunShape, chosen_gpus, run_shape
from modules.machine.strategy import with_strategy
from modules.machine.system_memory import needed_in_ram
from modules.ui.models.Listeners import Listeners
from modules.ui.models.measured_speed import speed_key
from modules.ui.models.run_text import describe_seconds
from modules.ui.models.typed_text import NO_GPU

IDLE_PERCENT = 5
IDLE_SHARE = 0.1  # of the memory may be in use on an idle GPU, by a desktop and the driver


class DeviceModel:
    """The machine and its GPU usage as last read, and what follows from them for the settings.

    machine: None until it is read. usage: of its GPUs, empty until it is read. num_samples: of an epoch; None until
    counted. base_bytes: size of the base model's local files; None if there are none or they are not found yet.
    """

    def __init__(self) -> None:
        self.machine: Machine | None = None
        self.usage: list[GpuUsage] = []
        self.num_samples: int | None = None
        self.base_bytes: int | None = None
        self._speed: tuple[dict, float | None] = ({}, None)  # the settings that were measured, and seconds per step
        self._listeners: Listeners[[str]] = Listeners()

    def subscribe(self, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call `changed` with "machine", "usage" or "files" when that changes. Returns a function that unsubscribes."""
        return self._listeners.add(changed)

    def take_machine(self, machine: Machine) -> None:
        if self.machine is None or machine.gpus != self.machine.gpus:
            self.usage = []
        self.machine = machine
        self._listeners.tell("machine")

    def take_usage(self, usage: Sequence[GpuUsage]) -> None:
        """Take new usage; ignored if it was read before the list of GPUs changed."""
        if self.machine is not None and len(usage) == len(self.machine.gpus):
            self.usage = list(usage)
            self._listeners.tell("usage")

    def take_pictures(self, num_samples: int | None) -> None:
        if num_samples != self.num_samples:
            self.num_samples = num_samples
            self._listeners.tell("files")

    def take_base(self, base_bytes: int | None) -> None:
        if base_bytes != self.base_bytes:
            self.base_bytes = base_bytes
            self._listeners.tell("files")

    def take_speed(self, key: dict, step_seconds: float | None) -> None:
        """Take the last measured duration of a step of settings with this `speed_key`; None: not measured."""
        if (key, step_seconds) != self._speed:
            self._speed = key, step_seconds
            self._listeners.tell("files")

    def read_usage(self) -> Callable[[], list[GpuUsage]]:
        """A function that reads the usage of the current GPUs and may be called in any thread."""
        gpus = self.gpus
        return lambda: read_usage(gpus)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.machine.gpus if self.machine else ()

    @property
    def usage_so_far(self) -> list[GpuUsage]:
        """The usage of each GPU, with unknown figures before the first reading."""
        return self.usage or [UNKNOWN_USAGE] * len(self.gpus)

    def ticked(self, device_indexes: Sequence[int]) -> set[int]:
        """The indexes of the GPUs chosen by the setting, where an empty list means all."""
        return set(device_indexes) & set(self._indexes()) if device_indexes else set(self._indexes())

    def setting_for(self, indexes: set[int]) -> list[int] | str:
        """The value of device_indexes for a choice of GPUs. For none it is a text that the setting refuses, which stays
        in the field until other GPUs are chosen, by hand, by undo or by a preset."""
        if not indexes:
            return NO_GPU
        return [] if indexes == set(self._indexes()) else sorted(indexes)

    def idle(self) -> set[int]:
        """The GPUs that appear unused; one with unknown usage counts as idle."""
        return {gpu.index for gpu, usage in zip(self.gpus, self.usage_so_far, strict=True) if _is_idle(gpu, usage)}

    def shape(self, config: TrainConfig) -> RunShape | None:
        """The shape of the run; None until the machine is read, or if it can't run the settings."""
        if self.machine is None:
            return None
        try:
            return run_shape(config, self.machine, self.num_samples)
        except UserError:
            return None

    def needed_bytes(self, config: TrainConfig) -> float | None:
        """The estimated memory on each device; None for a family of unknown size."""
        shape = self.shape(config)
        if shape is None:
            return needed_bytes(config, None, self.base_bytes)
        return needed_bytes(with_strategy(config, shape), shape.num_ranks, self.base_bytes)

    def strategy_text(self, config: TrainConfig) -> str:
        """How the model lies on the devices, in a sentence; "" while the machine is not read."""
        shape = self.shape(config)
        if shape is None:
            return ""
        group = sharing_ranks(with_strategy(config, shape), shape.num_ranks)
        divided = " and a part of the optimizer's state" if config.ddp_shard_optimizer else ""
        text = {
            "ddp": f"DDP, each device holds the whole model{divided}",
            "fsdp": "FSDP, all devices share one copy of the model",
            "hsdp": f"HSDP, every {group} devices share a copy of the model",
        }[shape.strategy]
        if config.distributed_strategy != "auto":
            return f"Strategy: {text}."
        return f"Expected strategy: {text} ({shape.strategy_reason})."  # the ranks decide by the memory of all GPUs

    def memory_text(self, config: TrainConfig) -> str:
        """The memory that the run needs on each device, and the least that is free on any chosen one, in words."""
        needed = self.needed_bytes(config)
        if needed is None:
            return "unknown for this model family"
        size = needed / GIB
        text = f"{f'about {size:.1f} GiB' if size >= 0.1 else 'less than 0.1 GiB'} by estimate"
        if (ram := self._needed_in_ram(config)) and (self.gpus or self.machine is None):
            text += f", and {ram / GIB:.1f} GiB of system memory"
        room = self.room_text(config)
        on_the_cpu = " in each process" if room and self.machine is not None and not self.gpus else ""
        return "; ".join(filter(None, (text + on_the_cpu, room)))

    def room_text(self, config: TrainConfig) -> str:
        """The least memory that is free on any chosen GPU, or what the machine has, in words; "" if unknown."""
        sizes = {gpu.index: gpu.memory_bytes for gpu in chosen_gpus(config, self.gpus) if gpu.memory_bytes is not None}
        free = [
            (num_bytes - used, index)
            for index, num_bytes in sizes.items()
            if (used := self.usage_so_far[index].memory_used_bytes) is not None
        ]
        if free:
            least, index = min(free)
            return f"GPU {index} has {least / GIB:.1f} of {sizes[index] / GIB:.1f} GiB free"
        if sizes:
            index = min(sizes, key=sizes.__getitem__)
            return f"GPU {index} has {sizes[index] / GIB:.1f} GiB"
        if self.machine is None or self.gpus or self.machine.memory_bytes is None:
            return ""
        return f"this machine has {self.machine.memory_bytes / GIB:.1f} GiB for all"

    def _needed_in_ram(self, config: TrainConfig) -> float | None:
        """The system memory that all ranks on this machine need."""
        shape = self.shape(config)
        if shape is None:
            return needed_in_ram(config, base_bytes=self.base_bytes)
        return needed_in_ram(with_strategy(config, shape), shape.num_ranks, shape.ranks_per_node, self.base_bytes)

    def time_text(self, config: TrainConfig, resumed: Mapping[str, Any] | None = None) -> str:
        """How long the steps of the run take at the last measured speed of these settings; "" if there is none.

        resumed: the state of the backup that the run resumes from. Its batch may differ from the measured one.
        """
        shape, (key, step_seconds) = self.shape(config), self._speed
        if step_seconds is None or shape is None or shape.steps is None or key != speed_key(config):
            return ""
        if resumed and resumed["run"]["global_batch"] != shape.batch:
            return ""
        num_steps = max(0, shape.steps - resumed["step"]) if resumed else shape.steps
        steps = f"the {counted(num_steps, 'step')} left" if resumed else counted(num_steps, "step")
        return (
            f"about {describe_seconds(num_steps * step_seconds)} for {steps} at "
            f"{1 / step_seconds:.2f} it/s, as last measured with these settings, without loading, caching and samples"
        )

    def choice_note(self, config: TrainConfig) -> str:
        """Why not all ticked GPUs train; "" if they do."""
        if config.enable_multi_gpu or len(self.ticked(config.device_indexes)) < 2:
            return ""
        return f"Multi-GPU is off: GPU {chosen_gpus(config, self.gpus)[0].index} trains."

    def _indexes(self) -> list[int]:
        return [gpu.index for gpu in self.gpus]


def worst_link(links: Sequence[Sequence[Link | None]], index: int, others: set[int]) -> Link | None:
    """The slowest kind of link from a GPU to any other that trains; None without others."""
    order: list[Link | None] = ["none", "unknown", "pcie", "nvlink"]
    found = [links[index][other] for other in others if other != index and other < len(links)]
    return min(found, key=order.index) if found else None


def probe_command(python: str, config: TrainConfig, machine: Machine, json_path: str | os.PathLike) -> list[str]:
    """The arguments of a communication test between the devices that train."""
    command = [python, "-m", f"{PACKAGE}.distributed.probe", f"--json={os.fspath(json_path)}"]
    if not machine.gpus:
        ranks = config.world_size or min(4, max(2, machine.cores))
        return [*command, "--backend=gloo", f"--world-size={max(2, ranks)}", "--megabytes=16", "--seconds=0.5"]
    indexes = ",".join(str(gpu.index) for gpu in chosen_gpus(config, machine.gpus))
    backend, _ = choose_backend(config.distributed_backend, has_gpu=True)
    return [*command, f"--backend={backend}", f"--devices={indexes}", "--seconds=1"]


def _is_idle(gpu: Gpu, usage: GpuUsage) -> bool:
    is_busy = (usage.utilisation or 0) > IDLE_PERCENT
    return not is_busy and (usage.memory_used_bytes or 0) <= IDLE_SHARE * (gpu.memory_bytes or float("inf"))
