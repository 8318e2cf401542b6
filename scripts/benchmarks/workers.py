"""The programs under comparison as seen from outside: started, told when it is their turn, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import IO, TypeVar

from modules.config.errors import UserError
from scripts.benchmarks.worker import Answer, WorkerArguments

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]


def take_turns(
    sides: list[tuple[str, WorkerArguments]], blocks: int, device: str, num_ranks: int, one_thread: bool = False
) -> list[tuple[Answer, Answer]]:
    """`blocks` pairs of turns of two programs; a first turn of each does not count.

    one_thread: as in `start_worker`.
    """
    with contextlib.ExitStack() as stack:
        ours, theirs = (stack.enter_context(start_worker(*side, device, num_ranks, one_thread)) for side in sides)
        ours.turn(), theirs.turn()
        return alternated(blocks, ours.turn, theirs.turn)


def alternated(count: int, ours: Callable[[], T], theirs: Callable[[], T]) -> list[tuple[T, T]]:
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
            undisturbed_seconds=max(answer.undisturbed_seconds for answer in answers),
            cpu_seconds=sum(answer.cpu_seconds for answer in answers),
            time=max(answer.time for answer in answers),
            peak_bytes=sum(peaks) if len(peaks) == len(answers) else None,
        )

    def _answer(self) -> Answer:
        line = self.answers.readline()
        if not line:
            raise UserError(f"{self.program} ended before its time: {last_lines(self.log)}")
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
    with new_run_folder(arguments.folder) as run_folder:
        command = command_of(program, arguments, run_folder, num_ranks)
        with start_program(program, command, device, num_ranks, one_thread) as worker:
            yield worker


@contextlib.contextmanager
def start_program(
    name: str,
    command: Sequence[str],
    device: str,
    num_ranks: int = 1,
    one_thread: bool = False,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Worker]:
    """Any program that takes turns as worker.py says. environment: further variables of it."""
    env = {**environment_of(device, num_ranks, one_thread), **environment}
    with (
        open_log() as log,
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=env, bufsize=0
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        yield Worker(name, process.stdin, process.stdout, log, device, num_ranks)
        # leaving closes its stdin, which ends it if it still waits, and waits for its end


def command_of(program: str, arguments: WorkerArguments, run_folder: Path, num_ranks: int) -> list[str]:
    options = replace(arguments, run_folder=run_folder).as_options()
    return [*_start(num_ranks), f"scripts.benchmarks.{program}", *options]


def _start(num_ranks: int) -> list[str]:
    if num_ranks == 1:
        return [sys.executable, "-m"]
    return [sys.executable, "scripts/elastic_agent.py", "--nproc-per-node", str(num_ranks), "-m"]


@contextlib.contextmanager
def new_run_folder(folder: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="run-", dir=folder) as run_folder:
        yield Path(run_folder)


def open_log() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")


def last_lines(log: IO[str]) -> str:
    log.seek(0)
    return "\n".join(log.read().strip().splitlines()[-80:])  # torchrun's own are the last 40


def environment_of(device: str, num_ranks: int = 1, one_thread: bool = False) -> dict[str, str]:
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    alike = {}  # on both sides: a thread for each rank, the same way between them
    if num_ranks > 1 or one_thread:
        alike["OMP_NUM_THREADS"] = "1"
    if num_ranks > 1 and sys.platform == "linux":
        alike["GLOO_SOCKET_IFNAME"] = "lo"
    return {**alike, **os.environ, **hidden}
