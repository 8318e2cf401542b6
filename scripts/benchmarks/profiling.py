"""Where the time of a step goes: PyTorch's operators, Python of its libraries, and each room of Chorus.

    python -m scripts.benchmarks.profiling --folder DIR --run-folder DIR --method lora --steps 5 --turns 2

Python's own profiler watches the thread that trains, after a first turn. Time is put down to the function that it was
spent in: functions of torch that are not written in Python are its operators, and the backward pass is one of them. The
profiler makes Python slower, about twofold, but no operator, so that the shares of Python are upper bounds. On a GPU,
operators take what their launches do.
"""

from __future__ import annotations

import cProfile
import os
import pstats
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from scripts.benchmarks.worker import Turns, WorkerArguments
from scripts.benchmarks.workers import command_of, new_run_folder, start_program

ROOT = Path(__file__).resolve().parents[2]
BACKWARD, OPERATORS, WAITS, FILES, OTHERS = "backward pass", "operators", "waits", "writing files", "other Python"
TORCH, LIBRARIES = "Python of PyTorch", "Python of models"
_PACKAGES = {"torch": TORCH, **dict.fromkeys(("diffusers", "transformers", "peft", "accelerate"), LIBRARIES)}
_WAITING = ("acquire", "select", "poll", "sleep", "wait")
_WRITING = ("'write'", "'flush'", "fsync", "posix", "io.open")
_TURNS = 2  # the first one warms up


@dataclass(frozen=True)
class Profile:
    """what: was trained. seconds: of a step. shares: part -> its share of them, the largest first."""

    what: str
    seconds: float
    shares: dict[str, float]

    @property
    def computing(self) -> float:
        """The share that PyTorch computes."""
        return self.shares.get(OPERATORS, 0.0) + self.shares.get(BACKWARD, 0.0)

    def __str__(self) -> str:
        shares = ", ".join(f"{part} {share:.2%}" for part, share in self.shares.items())
        return f"{self.what}: a step takes {self.seconds:.3g} s with the profiler; {shares}"

    def as_values(self) -> dict[str, Any]:
        return {**asdict(self), "computing": self.computing}

    def row(self) -> tuple[str, ...]:
        return (f"share of a step that PyTorch computes, {self.what}", f"{self.computing:.3f}", "", "", "")


def cases_of(method: str, num_ranks: int) -> list[tuple[str, tuple[str, ...], int]]:
    """(what trains, further settings, number of ranks): on one rank, with a text encoder, and on several ranks."""
    cases: list[tuple[str, tuple[str, ...], int]] = [(method, (), 1)]
    if method == "lora":
        cases.append(("lora and text encoder", ("text_encoder.train=true",), 1))
    return [*cases, (f"{method}, {num_ranks} ranks", (), num_ranks)]


def profile_step(
    folder: Path, what: str, method: str, settings: tuple[str, ...], device: str, steps: int, num_ranks: int
) -> Iterator[Profile]:
    """A step of one of `cases_of`. steps: that are watched."""
    arguments = WorkerArguments(folder, method, steps, _TURNS, settings=settings)
    with new_run_folder(arguments.folder) as run_folder:
        command = command_of("profiling", arguments, run_folder, num_ranks)
        with start_program("profiling", command, device, num_ranks) as worker:
            for _ in range(_TURNS):
                worker.turn()
        watched = pstats.Stats(*(str(file) for file in run_folder.glob("rank-*.pstats")))
    parts: Counter[str] = Counter()
    functions: dict[tuple[str, int, str], tuple] = vars(watched)["stats"]
    for (file, _, name), (_, _, own_seconds, *_) in functions.items():
        parts[part_of(file, name)] += own_seconds
    total = sum(parts.values())
    shares = {part: seconds / total for part, seconds in parts.most_common()}
    yield Profile(f"{what}, {device}", total / arguments.steps / num_ranks, shares)


def part_of(file: str, name: str) -> str:
    """The part of a step that a function belongs to, as Python's profiler names it: "~" is no file."""
    if file == "~":
        if "run_backward" in name:
            return BACKWARD
        if "torch" in name or name == "<built-in method apply>":  # of an autograd function
            return OPERATORS
        kinds = {WAITS: _WAITING, FILES: _WRITING}
        return next((kind for kind, words in kinds.items() if any(word in name for word in words)), OTHERS)
    path = Path(file)
    if path.is_relative_to(ROOT / "modules"):
        return f"modules/{path.relative_to(ROOT / 'modules').parts[0]}"
    packages = [after for before, after in zip(path.parts, path.parts[1:], strict=False) if before == "site-packages"]
    return _PACKAGES.get(packages[-1], OTHERS) if packages else OTHERS


class _WatchedTurns(Turns):
    """Watches all turns but the first, and writes what was seen below the run's folder."""

    run_folder: Path
    _profiler = cProfile.Profile()

    def after_step(self, number: int) -> None:
        if number == self._total_steps:
            self._profiler.disable()
            self._profiler.dump_stats(self.run_folder / f"rank-{os.environ.get('RANK', '0')}.pstats")
        super().after_step(number)
        if number == self._steps:
            self._profiler.enable()


def _watch(arguments: WorkerArguments) -> None:
    from scripts.benchmarks import chorus_run

    _WatchedTurns.run_folder = arguments.run_folder
    with mock.patch.object(chorus_run, "Turns", _WatchedTurns):
        chorus_run.train(arguments)


if __name__ == "__main__":
    _watch(WorkerArguments.parse())
