"""The processes of a run on this machine, as Linux tells of them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from modules.session.RunFolder import RunFolder
from modules.session.RunLock import holder_here


def pid_of_rank(folder: RunFolder, rank: int) -> int:
    """The child of the run's supervisor that has the event file of the rank open. Raises LookupError."""
    wanted = str(folder.event_path(rank))
    for pid in children(holder_here(folder.lock_path)):
        for link in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{link}") == wanted:
                    return pid
    raise LookupError(f"no process of rank {rank}")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
