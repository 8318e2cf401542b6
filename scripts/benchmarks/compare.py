"""Chorus against the loop written by hand: time of a step, memory, and time to the first step.

Both run as programs of their own with the same number of threads. What is reported is the median of the ratios of
pairs measured one right after the other, in alternating order, because a shared machine is never the same for long.
"""

from __future__ import annotations

import ast
import contextlib
import json
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import psutil

from modules.config.errors import UserError
from modules.session.events import read_events
from modules.session.RunFolder import RunFolder
from modules.session.StepInfo import StepInfo
from scripts.benchmarks.chorus_run import run_values
from scripts.benchmarks.options import OPTIONS
from scripts.benchmarks.results import Comparison, Target
from scripts.benchmarks.worker import SHARDED, Answer, WorkerArguments
from scripts.benchmarks.workers import (
    ROOT,
    alternated,
    environment_of,
    last_lines,
    new_run_folder,
    open_log,
    start_worker,
    take_turns,
)

CHORUS, REFERENCE, ENGINE = "chorus_run", "reference_loop", "engine_chorus"
# program -> how it is called, and the package that it needs
ENGINES = {
    "engine_hand": ("by hand", "torch"),
    "engine_accelerate": ("accelerate", "accelerate"),
    "engine_fabric": ("Lightning Fabric", "lightning_fabric"),
}
TINY_STEPS = 20  # for each of the usual ones

STEP, RANKS, SHARDED_STEP, ENGINE_STEP = Target(1.00, most_high=1.02), Target(0.98), Target(1.00), Target(1.02)
MEMORY, START = Target(1.00), Target(1.00)
_LOOK_SECONDS = 0.02


def compare_steps(
    folder: Path,
    method: str,
    device: str,
    blocks: int,
    steps_per_block: int,
    num_ranks: int = 1,
    switches: tuple[str, ...] = (),
) -> list[Comparison]:
    """Seconds (of the slowest rank) and processor seconds (of all threads and ranks) of a step.

    The two take turns of `steps_per_block` steps; a first turn does not count. switches: of worker.SWITCHES, on on both
    sides.
    """
    arguments = WorkerArguments(folder, method, steps_per_block, blocks + 1, switches=switches)
    answers = take_turns([(CHORUS, arguments), (REFERENCE, arguments)], blocks, device, num_ranks)
    what = ", ".join(("step", method, *switches, device, *((f"{num_ranks} ranks",) if num_ranks > 1 else ())))
    target = SHARDED_STEP if SHARDED in switches else RANKS if num_ranks > 1 else STEP
    return of_turns(what, answers, steps_per_block, target)


def compare_option(
    folder: Path, method: str, device: str, blocks: int, steps_per_block: int, name: str
) -> list[Comparison]:
    """The same of Chorus with an option of OPTIONS, and without; there is no target, it is for information."""
    plain = WorkerArguments(folder, method, steps_per_block, blocks + 1)
    with_option = replace(plain, settings=OPTIONS[name])
    answers = take_turns([(CHORUS, with_option), (CHORUS, plain)], blocks, device, 1)
    what = f"step with {name}, {method}, {device}"
    return of_turns(what, answers, steps_per_block, sides=("with it", "without"))


def compare_engine(folder: Path, device: str, blocks: int, steps_per_block: int, num_ranks: int) -> list[Comparison]:
    """The same of TrainingEngine with a loop by hand, accelerate and Lightning Fabric, as far as they are installed.

    Tiny steps have more of them in a turn, as they take a hundredth of the time.
    """
    others = {name: label for name, (label, package) in ENGINES.items() if find_spec(package) is not None}
    for name, (label, package) in ENGINES.items():
        if name not in others:
            print(f"engine, {label}: left out, as {package} is not installed", flush=True)
    found = []
    for task, factor, target in (("usual", 1, ENGINE_STEP), ("tiny", TINY_STEPS, None)):
        steps = steps_per_block * factor
        arguments = WorkerArguments(folder, "full", steps, blocks + 1, task=task)
        for name, label in others.items():
            sides = [(ENGINE, arguments), (name, arguments)]
            answers = take_turns(sides, blocks, device, num_ranks, one_thread=True)
            what = f"engine, {task} steps, {device}, {num_ranks} {'ranks' if num_ranks > 1 else 'rank'}"
            labels = (f"TrainingEngine ({lines_of(ENGINE)} lines)", f"{label} ({lines_of(name)} lines)")
            found += of_turns(what, answers, steps, target, labels, in_ms=task == "tiny")
    return found


def lines_of(program: str) -> int:
    """The lines of a program's training, without blank ones and comments, and without taking turns."""
    source = (ROOT / "scripts" / "benchmarks" / f"{program}.py").read_text(encoding="utf-8")
    (function,) = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    lines = source.splitlines()[function.lineno : function.end_lineno]
    return sum(bool(text.strip()) and not text.strip().startswith("#") and "turns" not in text for text in lines)


def compare_memory(folder: Path, method: str, device: str, count: int, steps: int, cold: bool = False) -> Comparison:
    """Most resident memory of the whole process, from its start to the end of `steps` steps; GiB."""
    arguments = WorkerArguments(folder, method, steps, 1, cold)

    def peak(program: str) -> float:
        with start_worker(program, arguments, device) as worker:
            answer = worker.turn()
        if answer.peak_bytes is None:
            raise UserError("memory can't be measured on this system: run the benchmark on Linux.")
        return answer.peak_bytes / 2**30

    pairs = alternated(count, lambda: peak(CHORUS), lambda: peak(REFERENCE))
    return Comparison(f"memory, {method}, {device}, {'encoding' if cold else 'cached'}", "GiB", MEMORY, pairs)


def compare_start(folder: Path, method: str, device: str, count: int) -> list[Comparison]:
    """Seconds from the start of the process to the end of the first step, everything cached, and processor seconds
    until then; ours by scripts/train.py.

    The first pair fills the caches and does not count.
    """
    _, *pairs = alternated(
        count + 1, lambda: _first_step_of_chorus(folder, method, device), lambda: first_step(folder, method, device)
    )
    what = f"start to first step, {method}, {device}"
    taken = [(ours.seconds, theirs.seconds) for ours, theirs in pairs]
    used = [(ours.cpu_seconds, theirs.cpu_seconds) for ours, theirs in pairs]
    return [Comparison(what, "s", START, taken), Comparison(f"{what}, processor time", "s", START, used)]


def of_turns(
    what: str, answers: list[tuple[Answer, Answer]], steps_per_block: int,
    target: Target | None = None, sides: tuple[str, str] = ("Chorus", "by hand"), in_ms: bool = False,
) -> list[Comparison]:  # fmt: skip
    """What the turns of two sides say: time, and processor time, of a step."""
    unit, steps = ("ms", steps_per_block / 1000) if in_ms else ("s", steps_per_block)
    taken = [(ours.seconds / steps, theirs.seconds / steps) for ours, theirs in answers]
    used = [(ours.cpu_seconds / steps, theirs.cpu_seconds / steps) for ours, theirs in answers]
    return [
        Comparison(what, unit, target, taken, sides),
        Comparison(f"{what}, processor time", unit, target, used, sides),
    ]


class FirstStep(NamedTuple):
    """From the start of a process to the end of its first step."""

    seconds: float
    cpu_seconds: float


def first_step(folder: Path, method: str, device: str) -> FirstStep:
    """Of the loop by hand."""
    started = time.time()
    with start_worker(REFERENCE, WorkerArguments(folder, method, steps=1, turns=1), device) as worker:
        answer = worker.turn()
    return FirstStep(answer.time - started, answer.process_seconds)


def _first_step_of_chorus(folder: Path, method: str, device: str) -> FirstStep:
    """From the event file, as any other program would see it."""
    with new_run_folder(folder) as run_folder, open_log() as log:
        values = run_values(WorkerArguments(folder, method, steps=1, turns=1, run_folder=run_folder))
        config = run_folder / "config.json"
        config.write_text(json.dumps(values), encoding="utf-8")
        command = [sys.executable, str(ROOT / "scripts" / "train.py"), "--config", str(config)]
        started, cpu_seconds = time.time(), 0.0
        with subprocess.Popen(command, stdout=log, stderr=log, env=environment_of(device)) as process:
            seen = psutil.Process(process.pid)
            while not (step := _step_time(RunFolder(values["workspace_dir"]))) and process.poll() is None:
                time.sleep(_LOOK_SECONDS)
            if step:
                with contextlib.suppress(psutil.Error):  # it has ended
                    cpu_seconds = sum(seen.cpu_times()[:2])
        if process.returncode or not step or not cpu_seconds:
            raise UserError(f"scripts/train.py failed: {last_lines(log)}")
        return FirstStep(step - started, cpu_seconds)


def _step_time(run: RunFolder) -> float | None:
    """When the first step ended; None before that."""
    events, _ = read_events(run.event_path(0))
    return next((record.time for record in events if isinstance(record.event, StepInfo)), None)
