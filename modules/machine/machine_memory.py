"""How much system memory is available to the processes of a run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path


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
