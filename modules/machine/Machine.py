"""The hardware of this machine that a run can use."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from modules.machine.cpu_formats import cpu_formats
from modules.machine.devices import Gpu, Link, link_matrix, list_gpus, no_gpu_reason, num_cores
from modules.machine.machine_memory import memory_bytes, pinnable_bytes, ram_bytes


@dataclass(frozen=True)
class Machine:
    """links: between all pairs of `gpus`; empty while unknown. no_gpu_reason: "" if there is a GPU.

    memory_bytes, ram_bytes, pinnable_bytes: as the functions of these names report them. system: Python's
    `sys.platform`. cpu_formats: as that function reports them.
    """

    gpus: tuple[Gpu, ...] = ()
    cores: int = 1
    links: Sequence[Sequence[Link | None]] = ()
    no_gpu_reason: str = ""
    memory_bytes: int | None = None
    system: str = sys.platform
    cpu_formats: frozenset[str] | None = None
    ram_bytes: int | None = None
    pinnable_bytes: int | None = None


def read_machine() -> Machine:
    """Query the driver, which may take seconds."""
    gpus = tuple(list_gpus())
    reason = "" if gpus else no_gpu_reason()
    ram = ram_bytes()
    return Machine(
        gpus,
        num_cores(),
        link_matrix(gpus),
        reason,
        memory_bytes(),
        cpu_formats=cpu_formats(),
        ram_bytes=ram,
        pinnable_bytes=pinnable_bytes(ram),
    )
