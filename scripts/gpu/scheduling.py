"""Runs parts in processes of their own, beside each other where the GPU and the processor have room for them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from scripts.gpu.cases import is_cuda
from scripts.gpu.parts import Part
from scripts.gpu.results import append_line

ROOT = Path(__file__).resolve().parents[2]
LEAST_SECONDS = 10  # a part with less time than that is not begun
POLL_SECONDS = 0.2
PROGRAM = ("-m", "scripts.gpu.part")  # of a part
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "DIFFUSERS_VERBOSITY": "error",
    "TQDM_DISABLE": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "4",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "PYTHONUNBUFFERED": "1",
}


THREADS, REHEARSING_THREADS = 2, 1  # of a process; the operations of tiny models are not worth sharing


class Room(NamedTuple):
    """gib: GPU memory for the parts that run at once. processes: how many may."""

    gib: float
    processes: int


class Running(NamedTuple):
    part: Part
    process: subprocess.Popen
    log: TextIO
    begun: float
    limit: float


def run_parts(
    parts: Sequence[Part], device: str, results: Path, room: Room, budget: float | None, say: Callable[[str], None]
) -> None:
    """Runs the parts in their order; each begins as soon as there is room for it.

    results: the file that parts write to; their output goes into `PART.log` beside it. budget: seconds for all of
    them, after which those that run are ended and the others are not begun. say: is told what begins and ends.
    """
    begun = time.monotonic()
    waiting: list[Part] = list(parts)
    running: list[Running] = []
    try:
        while waiting or running:
            left = float("inf") if budget is None else budget - (time.monotonic() - begun)
            while waiting and (left < LEAST_SECONDS or fits(waiting[0], [each.part for each in running], room)):
                part = waiting.pop(0)
                if left < LEAST_SECONDS:
                    _told(part, "no time left", 0, results, say)
                else:
                    running.append(_start(part, device, results, left, say))
            running = [each for each in running if not _has_ended(each, results, say)]
            time.sleep(POLL_SECONDS)
    finally:
        for each in running:
            _end(each)


def fits(part: Part, running: Sequence[Part], room: Room) -> bool:
    """Whether the part may begin beside those that run."""
    if not running:
        return True
    if part.is_alone or any(each.is_alone for each in running) or len(running) >= room.processes:
        return False
    return part.gib + sum(each.gib for each in running) <= room.gib


def _start(part: Part, device: str, results: Path, left: float, say: Callable[[str], None]) -> Running:
    limit = min(part.limit, left)
    say(f"{part.name} begins (at most {limit:.0f} s)")
    log = results.with_name(f"{part.name}.log").open("a", encoding="utf-8")
    command = [sys.executable, *PROGRAM, part.name, "--device", device, "--results", str(results)]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    threads = THREADS if is_cuda(device) else REHEARSING_THREADS
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    return Running(part, process, log, time.monotonic(), limit)


def _has_ended(each: Running, results: Path, say: Callable[[str], None]) -> bool:
    code, seconds = each.process.poll(), time.monotonic() - each.begun
    if code is None and seconds < each.limit:
        return False
    _end(each)
    if code is None and each.part.is_open:
        code = 0
    ended = "time is over" if code is None else "ok" if code == 0 else "failed" if code == 1 else f"died ({code})"
    _told(each.part, ended, seconds, results, say)
    return True


def _told(part: Part, ended: str, seconds: float, results: Path, say: Callable[[str], None]) -> None:
    append_line(results, {"part": part.name, "ended": ended, "seconds": round(seconds, 1)})
    say(f"{part.name}: {ended}" + (f" after {seconds:.0f} s" if seconds else ""))


def _end(each: Running) -> None:
    """Ends the process, and all that it has started."""
    import psutil

    try:
        family = [*psutil.Process(each.process.pid).children(recursive=True), each.process]
    except psutil.NoSuchProcess:
        family = []
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    each.process.wait()
    each.log.close()
