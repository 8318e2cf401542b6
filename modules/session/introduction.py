"""What rank 0 says of the ranks at the start: lines for the log and the terminal, which are not what the run does."""

from __future__ import annotations

import re

_FACTS = (
    *("Distributed training: ", "Number of processes: ", "Mixed precision: ", "Distributed strategy: "),
    *("Process ", "GPU links: "),
)
_DEVICE = re.compile(r"Process (\d+) using device: (\S+)")


def device_line(rank: int, device: str, host: str = "") -> str:
    """Which device a rank uses. host: the machine, where there are several."""
    return f"Process {rank} using device: {device}" + (f" on {host}" if host else "")


def device_of(line: str) -> tuple[int, str] | None:
    """The rank and device of such a line; None for any other."""
    found = _DEVICE.match(line)
    return None if found is None else (int(found[1]), found[2])


def is_fact(line: str) -> bool:
    """Whether a status is one of these lines, and no phase of the run."""
    return line.startswith(_FACTS)
