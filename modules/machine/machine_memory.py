"""How much system memory is available to the processes of a run."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from modules.machine.wsl import in_wsl

WSL_PINNABLE_BYTES = 2**30


def memory_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Total memory plus swap, limited to what a container or job may use.

    Total rather than free memory, because free memory changes from moment to moment, while a run that needs more than
    the total can never be trained. None if unknown: on systems other than Linux.
    """
    try:
        text = (proc / "meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    kilobytes = dict(re.findall(r"^(\w+):\s+(\d+) kB", text, re.M))
    total, swap = (1024 * int(kilobytes[name]) for name in ("MemTotal", "SwapTotal"))
    with contextlib.suppress(OSError):  # a sandbox may hide the file
        total = min([total, *_limits(proc, cgroups)])
    return total + swap


def ram_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Memory without swap, limited to what a container or job may use. None if the system does not say."""
    import psutil

    try:
        total: int = psutil.virtual_memory().total
    except (psutil.Error, OSError):
        return None
    with contextlib.suppress(OSError):  # not Linux, or a sandbox hides the file
        total = min([total, *_limits(proc, cgroups)])
    return total


def available_bytes() -> int | None:
    """Memory that programs can still take without swapping; None if the system does not say."""
    import psutil

    try:
        return psutil.virtual_memory().available
    except (psutil.Error, OSError):
        return None


def pinnable_bytes(ram: int | None, system: str = sys.platform, is_wsl: bool | None = None) -> int | None:
    """How much of the memory all programs may pin together, for copies from and to GPUs; None if `ram` is.

    is_wsl: as `in_wsl` says. Sources: NVIDIA's "CUDA on WSL User Guide" names the limit of WSL without a figure; people
    measured 0.5 to 1 GiB (microsoft/WSL issue 14078, NVIDIA/nvidia-container-toolkit issue 226).
    """
    if ram is None:
        return None
    if system == "win32":
        return ram // 2
    return min(ram, WSL_PINNABLE_BYTES) if (in_wsl() if is_wsl is None else is_wsl) else ram


def _limits(proc: Path, cgroups: Path) -> Iterator[int]:
    """The limits in bytes of the control groups of this process and of their parents."""
    for line in (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):  # version 1
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        folder = root / group.lstrip("/")
        for place in (folder, *folder.parents):
            if not place.is_relative_to(root):
                break
            with contextlib.suppress(OSError, ValueError):  # missing in a container, or "max"
                yield int((place / name).read_text(encoding="ascii"))
