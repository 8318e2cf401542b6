"""How TrainingEngine scales with the number of ranks.

Strong scaling divides one batch among the ranks, weak scaling gives each rank a batch of its own. All runs stay alive
and take turns, in alternating order, so that every one is measured at the same speed of the machine; each figure is the
median over the rounds of the ratio to one rank in the same round. Every rank has one thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from scripts.benchmarks.compare import ENGINE
from scripts.benchmarks.medians import Median, median_with_interval
from scripts.benchmarks.worker import Answer, WorkerArguments
from scripts.benchmarks.workers import start_worker

STRONG_BATCH = 128  # of all ranks
WEAK_BATCH = 64  # of each rank
RANK_COUNTS = (1, 2, 4)


@dataclass(frozen=True)
class Run:
    """batch_size: of each rank."""

    num_ranks: int
    batch_size: int

    @property
    def batch_of_all(self) -> int:
        return self.num_ranks * self.batch_size


@dataclass(frozen=True)
class Scaling:
    """How a run on several ranks compares with one rank.

    what: "strong" or "weak". samples_per_second: median of all ranks together. speed_up: of samples per second.
    processor_time: seconds of the processors per sample, as a multiple of those of one rank.
    has_too_few_devices: whether there are more ranks than cores or GPUs, so that it can't be faster.
    """

    what: str
    run: Run
    samples_per_second: float
    speed_up: Median
    processor_time: Median
    has_too_few_devices: bool

    def __str__(self) -> str:
        ranks = f"{self.run.num_ranks} {'ranks' if self.run.num_ranks > 1 else 'rank'}"
        return (
            f"{self.what} scaling, {ranks} with batches of {self.run.batch_size}"
            f"{' (more ranks than devices)' if self.has_too_few_devices else ''}: "
            f"{self.samples_per_second:.0f} samples/s, speed-up {self.speed_up}, "
            f"efficiency {self.speed_up.value / self.run.num_ranks:.0%}, processor time {self.processor_time}"
        )

    def as_values(self) -> dict[str, Any]:
        return asdict(self)

    def row(self) -> tuple[str, ...]:
        ranks = f"{self.run.num_ranks} {'ranks' if self.run.num_ranks > 1 else 'rank'}"
        speed_up = self.speed_up
        what = f"{self.what} scaling, {ranks}, speed-up"
        return (what, f"{speed_up.value:.3f}", f"{speed_up.low:.3f} to {speed_up.high:.3f}", "", "")


def measure_scaling(
    folder: Path,
    device: str,
    rounds: int,
    steps_per_turn: int,
    num_devices: int,
    rank_counts: Sequence[int] = RANK_COUNTS,
) -> list[Scaling]:
    """A first turn of each run does not count. num_devices: cores or GPUs. rank_counts: begin with 1, and divide
    STRONG_BATCH.
    """
    strong = [Run(count, STRONG_BATCH // count) for count in rank_counts]
    weak = [Run(count, WEAK_BATCH) for count in rank_counts]
    turns = _take_turns(list(dict.fromkeys([*strong, *weak])), folder, device, rounds, steps_per_turn)
    return [
        _compared(what, run, turns[run], turns[runs[0]], steps_per_turn, run.num_ranks > num_devices)
        for what, runs in (("strong", strong), ("weak", weak))
        for run in runs
    ]


def _take_turns(
    runs: Sequence[Run], folder: Path, device: str, rounds: int, steps_per_turn: int
) -> dict[Run, list[Answer]]:
    """The answers of each run, one per round."""
    turns: dict[Run, list[Answer]] = {run: [] for run in runs}
    with contextlib.ExitStack() as stack:
        workers = {}
        for run in runs:
            arguments = WorkerArguments(folder, "full", steps_per_turn, rounds + 1, batch_size=run.batch_size)
            workers[run] = stack.enter_context(start_worker(ENGINE, arguments, device, run.num_ranks, one_thread=True))
            workers[run].turn()
        for number in range(rounds):
            for run in runs if number % 2 == 0 else runs[::-1]:
                turns[run].append(workers[run].turn())
    return turns


def _compared(
    what: str,
    run: Run,
    answers: Sequence[Answer],
    of_one: Sequence[Answer],
    steps_per_turn: int,
    has_too_few_devices: bool,
) -> Scaling:
    samples = run.batch_of_all / (STRONG_BATCH if what == "strong" else WEAK_BATCH)  # as a multiple of one rank's
    pairs = list(zip(answers, of_one, strict=True))
    return Scaling(
        what,
        run,
        median(run.batch_of_all * steps_per_turn / answer.seconds for answer in answers),
        median_with_interval([samples * one.seconds / answer.seconds for answer, one in pairs]),
        median_with_interval([answer.cpu_seconds / samples / one.cpu_seconds for answer, one in pairs]),
        has_too_few_devices,
    )
