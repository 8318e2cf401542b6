"""Times of a thread beside other threads and programs."""

from __future__ import annotations

from pathlib import Path


def displaced_seconds() -> float:
    """How long this thread was ready since its start, but had no processor. 0.0 where the system does not tell.

    Source: Documentation/scheduler/sched-stats.rst of Linux, /proc/<pid>/schedstat.
    """
    try:
        nanoseconds = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0.0
    return int(nanoseconds) * 1e-9
