"""A process that computes like a rank and writes events like one: python -m scripts.benchmarks.ui_rank FOLDER RANK

It goes on until it is ended.
"""

from __future__ import annotations

import contextlib
import sys
import time

from modules.session.RunFolder import RunFolder
from modules.session.RunLock import RunLock
from scripts.benchmarks.ui import step_line, write_steps

STEPS_BEFORE = 20_000
STEPS_PER_SECOND = 20


def main(path: str, rank: int) -> None:
    folder = RunFolder(path)
    write_steps(folder.event_path(rank), STEPS_BEFORE, rank)
    step = STEPS_BEFORE
    with RunLock(folder.lock_path) if rank == 0 else contextlib.nullcontext():
        while True:
            step += 1
            compute(1 / STEPS_PER_SECOND)
            with folder.event_path(rank).open("a", encoding="utf-8") as file:
                file.write(step_line(rank, step, 0.1 + step % 7 / 100, 10 * STEPS_BEFORE))


def compute(seconds: float) -> None:
    """Keep a core busy."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(number * number for number in range(1000))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
