"""Chorus against the loop written by hand: time of a step, memory, and time to the first step.

Both run as programs of their own with the same number of threads. What is reported is the median of the ratios of
pairs measured one right after the other, in alternating order, because a shared machine is never the same for long.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import IO, Any, TypeVar

from modules.config.errors import UserError
from modules.session.events import read_events
from modules.session.StepInfo import StepInfo
from scripts.benchmarks.chorus_run import run_values
from scripts.benchmarks.medians import Median, median_with_interval
from scripts.benchmarks.options import OPTIONS
from scripts.benchmarks.worker import Answer, WorkerArguments

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
CHORUS, REFERENCE, ENGINE = "chorus_run", "reference_loop", "engine_chorus"
# program -> how it is called, and the package that it needs
ENGINES = {
    "engine_hand": ("by hand", "torch"),
    "engine_accelerate": ("accelerate", "accelerate"),
    "engine_fabric": ("Lightning Fabric", "lightning_fabric"),
}
TINY_STEPS = 20  # for each of the usual ones


@dataclass(frozen=True)
class Comparison:
    """One comparison; `unit` is that of the two medians. target: of the ratio, None where there is none."""

    what: str
    unit: str
    target: float | None
    pairs: list[tuple[float, float]]
    sides: tuple[str, str] = ("Chorus", "by hand")

    @property
    def ratio(self) -> Median:
        return median_with_interval([ours / theirs for ours, theirs in self.pairs])

    def __str__(self) -> str:
        ours, theirs = (median(side) for side in zip(*self.pairs, strict=True))
        target = f", target {self.target:.2f}" if self.target else ""
        return (
            f"{self.what}: ratio {self.ratio} over {len(self.pairs)} pairs{target}; "
            f"{self.sides[0]} {ours:.3f} {self.unit}, {self.sides[1]} {theirs:.3f} {self.unit}"
        )

    def as_values(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": asdict(self.ratio)}


def compare_steps(
    folder: Path, method: str, device: str, blocks: int, steps_per_block: int, num_ranks: int = 1
) -> list[Comparison]:
    """Seconds (of the slowest rank) and processor seconds (of all threads and ranks) of a step.

    The two take turns of `steps_per_block` steps; a first turn does not count.
    """
    arguments = WorkerArguments(folder, method, steps_per_block, blocks + 1)
    answers = _take_turns([(CHORUS, arguments), (REFERENCE, arguments)], blocks, device, num_ranks)
    what = f"step, {method}, {device}" + (f", {num_ranks} ranks" if num_ranks > 1 else "")
    return _of_turns(what, answers, steps_per_block, target=1.05 if num_ranks > 1 else 1.03)


def compare_option(
    folder: Path, method: str, device: str, blocks: int, steps_per_block: int, name: str
) -> list[Comparison]:
    """The same of Chorus with an option of OPTIONS, and without; there is no target, it is for information."""
    plain = WorkerArguments(folder, method, steps_per_block, blocks + 1)
    with_option = replace(plain, settings=OPTIONS[name])
    answers = _take_turns([(CHORUS, with_option), (CHORUS, plain)], blocks, device, 1)
    what = f"step with {name}, {method}, {device}"
    return _of_turns(what, answers, steps_per_block, sides=("with it", "without"))


def compare_engine(folder: Path, device: str, blocks: int, steps_per_block: int, num_ranks: int) -> list[Comparison]:
    """The same of TrainingEngine with a loop by hand, accelerate and Lightning Fabric, as far as they are installed.

    Tiny steps have more of them in a turn, as they take a hundredth of the time.
    """
    others = {name: label for name, (label, package) in ENGINES.items() if find_spec(package) is not None}
    for name, (label, package) in ENGINES.items():
        if name not in others:
            print(f"engine, {label}: left out, as {package} is not installed", flush=True)
    found = []
    for task, factor, target in (("usual", 1, 1.02), ("tiny", TINY_STEPS, None)):
        steps = steps_per_block * factor
        arguments = WorkerArguments(folder, "full", steps, blocks + 1, task=task)
        for name, label in others.items():
            sides = [(ENGINE, arguments), (name, arguments)]
            answers = _take_turns(sides, blocks, device, num_ranks, one_thread=True)
            what = f"engine, {task} steps, {device}, {num_ranks} {'ranks' if num_ranks > 1 else 'rank'}"
            labels = (f"TrainingEngine ({lines_of(ENGINE)} lines)", f"{label} ({lines_of(name)} lines)")
            found += _of_turns(what, answers, steps, target, labels, in_ms=task == "tiny")
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

    pairs = _alternated(count, lambda: peak(CHORUS), lambda: peak(REFERENCE))
    return Comparison(f"memory, {method}, {device}, {'encoding' if cold else 'cached'}", "GiB", 1.10, pairs)


def compare_start(folder: Path, method: str, device: str, count: int) -> Comparison:
    """Seconds from the start of the process to the end of the first step, everything cached; ours by scripts/train.py.

    The first pair fills the caches and does not count.
    """
    pairs = _alternated(
        count + 1, lambda: _first_step_of_chorus(folder, method, device), lambda: _first_step(folder, method, device)
    )
    return Comparison(f"start to first step, {method}, {device}", "s", 1.30, pairs[1:])


def _of_turns(
    what: str, answers: list[tuple[Answer, Answer]], steps_per_block: int,
    target: float | None = None, sides: tuple[str, str] = ("Chorus", "by hand"), in_ms: bool = False,
) -> list[Comparison]:  # fmt: skip
    """What the turns of two sides say: time, and processor time, of a step."""
    unit, steps = ("ms", steps_per_block / 1000) if in_ms else ("s", steps_per_block)
    taken = [(ours.seconds / steps, theirs.seconds / steps) for ours, theirs in answers]
    used = [(ours.cpu_seconds / steps, theirs.cpu_seconds / steps) for ours, theirs in answers]
    return [
        Comparison(what, unit, target, taken, sides),
        Comparison(f"{what}, processor time", unit, target, used, sides),
    ]


def _take_turns(
    sides: list[tuple[str, WorkerArguments]], blocks: int, device: str, num_ranks: int, one_thread: bool = False
) -> list[tuple[Answer, Answer]]:
    """`blocks` pairs of turns of two programs; a first turn of each does not count.

    one_thread: as in `start_worker`.
    """
    with contextlib.ExitStack() as stack:
        ours, theirs = (stack.enter_context(start_worker(*side, device, num_ranks, one_thread)) for side in sides)
        ours.turn(), theirs.turn()
        return _alternated(blocks, ours.turn, theirs.turn)


def _alternated(count: int, ours: Callable[[], T], theirs: Callable[[], T]) -> list[tuple[T, T]]:
    """`count` pairs (ours, theirs), measured in the order ours theirs, theirs ours, ours theirs ..."""
    pairs = []
    for number in range(count):
        if number % 2 == 0:
            first = ours()
            pairs.append((first, theirs()))
        else:
            first = theirs()
            pairs.append((ours(), first))
    return pairs


def _first_step(folder: Path, method: str, device: str) -> float:
    started = time.time()
    with start_worker(REFERENCE, WorkerArguments(folder, method, steps=1, turns=1), device) as worker:
        return worker.turn().time - started


def _first_step_of_chorus(folder: Path, method: str, device: str) -> float:
    """From the event file, as any other program would see it."""
    with _run_folder(folder) as run_folder, _log() as log:
        values = run_values(WorkerArguments(folder, method, steps=1, turns=1, run_folder=run_folder))
        config = run_folder / "config.json"
        config.write_text(json.dumps(values), encoding="utf-8")
        command = [sys.executable, str(ROOT / "scripts" / "train.py"), "--config", str(config)]
        started = time.time()
        code = subprocess.run(command, stdout=log, stderr=log, env=_environment(device)).returncode
        events, _ = read_events(Path(values["workspace_dir"]) / "events" / "rank-0.jsonl")
        finished = [record.time for record in events if isinstance(record.event, StepInfo)]
        if code or not finished:
            raise UserError(f"scripts/train.py failed: {_last_lines(log)}")
        return finished[0] - started


@dataclass
class Worker:
    """A program of one or more ranks that trains when it is its turn. requests, answers: its stdin and stdout."""

    program: str
    requests: IO[bytes]
    answers: IO[bytes]
    log: IO[str]
    device: str
    num_ranks: int

    def turn(self) -> Answer:
        """What its ranks answer, as one: the longest time, the sum of what each has used."""
        with contextlib.suppress(BrokenPipeError):  # it has ended: the missing answer says so below
            self.requests.write(b"\n" * self.num_ranks)
        answers = [self._answer() for _ in range(self.num_ranks)]
        peaks = [answer.peak_bytes for answer in answers if answer.peak_bytes is not None]
        return replace(
            answers[0],
            seconds=max(answer.seconds for answer in answers),
            cpu_seconds=sum(answer.cpu_seconds for answer in answers),
            time=max(answer.time for answer in answers),
            peak_bytes=sum(peaks) if len(peaks) == len(answers) else None,
        )

    def _answer(self) -> Answer:
        line = self.answers.readline()
        if not line:
            raise UserError(f"{self.program} ended before its time: {_last_lines(self.log)}")
        answer = Answer(**json.loads(line))
        if answer.device != self.device:
            raise UserError(f"--device {self.device}: {self.program} ran on {answer.device}; use that device.")
        if answer.world_size != self.num_ranks:
            raise UserError(f"--ranks {self.num_ranks}: {self.program} was one of {answer.world_size} ranks.")
        return answer


@contextlib.contextmanager
def start_worker(
    program: str, arguments: WorkerArguments, device: str, num_ranks: int = 1, one_thread: bool = False
) -> Iterator[Worker]:
    """one_thread: of a single rank; several have one each anyway."""
    with _run_folder(arguments.folder) as run_folder, _log() as log:
        options = replace(arguments, run_folder=run_folder).as_options()
        command = [*_start(num_ranks), f"scripts.benchmarks.{program}", *options]
        env = _environment(device, num_ranks, one_thread)
        with subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=env, bufsize=0
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            yield Worker(program, process.stdin, process.stdout, log, device, num_ranks)
            # leaving closes its stdin, which ends it if it still waits, and waits for its end


def _start(num_ranks: int) -> list[str]:
    if num_ranks == 1:
        return [sys.executable, "-m"]
    return [sys.executable, "scripts/elastic_agent.py", "--nproc-per-node", str(num_ranks), "-m"]


@contextlib.contextmanager
def _run_folder(folder: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="run-", dir=folder) as run_folder:
        yield Path(run_folder)


def _log() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")


def _last_lines(log: IO[str]) -> str:
    log.seek(0)
    return "\n".join(log.read().strip().splitlines()[-80:])  # torchrun's own are the last 40


def _environment(device: str, num_ranks: int = 1, one_thread: bool = False) -> dict[str, str]:
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    alike = {}  # on both sides: a thread for each rank, the same way between them
    if num_ranks > 1 or one_thread:
        alike["OMP_NUM_THREADS"] = "1"
    if num_ranks > 1 and sys.platform == "linux":
        alike["GLOO_SOCKET_IFNAME"] = "lo"
    return {**alike, **os.environ, **hidden}
