"""The processes of a run on this machine, as Linux tells of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from modules.session.RunFolder import RunFolder
from modules.session.RunLock import holder_here


def pid_of_rank(folder: RunFolder, rank: int) -> int:
    """The child of the run's supervisor that has the event file of the rank open. Raises LookupError."""
    return pid_that_has_open(folder.event_path(rank), children(holder_here(folder.lock_path)))


def pid_that_has_open(file: Path, pids: Iterable[int]) -> int:
    """The first of the processes that has the file open. Raises LookupError."""
    for pid in pids:
        for link in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{link}") == str(file):
                    return pid
    raise LookupError(f"no process has {file} open")


def descendants(pid: int) -> list[int]:
    """Its children, theirs, and so on."""
    return [one for child in children(pid) for one in (child, *descendants(child))]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
