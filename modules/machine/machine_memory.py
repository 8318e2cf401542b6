"""How much memory this machine has for the processes of a run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path


def memory_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """All of it, used or not, as far as a container or a job may use it, and its swap.

    What is free changes from one moment to the next; a run that needs more than all of it can't be trained at any.
    None where the system does not say: elsewhere than on Linux.
    """
    try:
        text = (proc / "meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    kilobytes = dict(re.findall(r"^(\w+):\s+(\d+) kB", text, re.M))
    total, swap = (1024 * int(kilobytes[name]) for name in ("MemTotal", "SwapTotal"))
    with contextlib.suppress(OSError):  # a sandbox may hide them
        total = min([total, *_limits(proc, cgroups)])
    return total + swap


def _limits(proc: Path, cgroups: Path) -> Iterator[int]:
    """Those of the control groups that this process is in, and of the groups around them; in bytes."""
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
            with contextlib.suppress(OSError, ValueError):  # not there in a container, or "max"
                yield int((place / name).read_text(encoding="ascii"))
