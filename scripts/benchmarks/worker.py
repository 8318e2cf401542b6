"""What the two programs under comparison share: their arguments, and taking turns with each other.

A worker is told on its stdin that it is its turn, one byte each time, and answers on its stdout with one JSON object.
The ranks of a program share both pipes: each takes one of the bytes, because none can end a turn without the others,
and each answers with a line of its own. So a program is out of the way once all its ranks have answered.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

BATCH_SIZE = 4
LEARNING_RATE = 1e-4
LORA_RANK = 8
MAX_GRAD_NORM = 1.0
# What both sides can do otherwise than by default. bf16: autocast, and with LoRA also the frozen weights. compiled: the
# transformer blocks of the U-Net, by torch.compile. sharded: each rank holds a part of every weight (FSDP2).
BF16, COMPILED, SHARDED = "bf16", "compiled", "sharded"
SWITCHES = (BF16, COMPILED, SHARDED)


@dataclass(frozen=True)
class WorkerArguments:
    """folder: with the material and the caches. steps: optimizer steps of a turn.

    cold: pictures and captions are encoded in the run instead of read from a cache. run_folder: for what one run
    writes, shared by its ranks. settings: further ones of Chorus, as "path=value". switches: of SWITCHES, those that
    are on. task: of TrainingEngine, in engine_task. batch_size: of a rank of it; None: that of the task.
    decoder_seconds: that decoding an image waits, of the caching.
    """

    folder: Path
    method: str
    steps: int
    turns: int
    cold: bool = False
    run_folder: Path = Path()
    settings: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    batch_size: int | None = None
    task: str = "usual"
    decoder_seconds: float = 0.0

    @property
    def total_steps(self) -> int:
        return self.steps * self.turns

    def as_options(self) -> list[str]:
        options = ["--folder", str(self.folder), "--method", self.method, "--run-folder", str(self.run_folder)]
        options += ["--steps", str(self.steps), "--turns", str(self.turns)]
        options += [f"--set={setting}" for setting in self.settings]
        options += ["--task", self.task, "--decoder-seconds", str(self.decoder_seconds)]
        options += [f"--switch={switch}" for switch in self.switches]
        options += [] if self.batch_size is None else ["--batch-size", str(self.batch_size)]
        return [*options, "--cold"] if self.cold else options

    @classmethod
    def parse(cls) -> WorkerArguments:
        parser = argparse.ArgumentParser()
        parser.add_argument("--folder", type=Path, required=True)
        parser.add_argument("--run-folder", type=Path, required=True)
        parser.add_argument("--method", choices=("lora", "full"), required=True)
        parser.add_argument("--steps", type=int, required=True)
        parser.add_argument("--turns", type=int, required=True)
        parser.add_argument("--set", action="append", default=[], dest="settings")
        parser.add_argument("--switch", action="append", default=[], dest="switches", choices=SWITCHES)
        parser.add_argument("--cold", action="store_true")
        parser.add_argument("--batch-size", type=int)
        parser.add_argument("--task", choices=("usual", "tiny"), default="usual")
        parser.add_argument("--decoder-seconds", type=float, default=0.0)
        args = parser.parse_args()
        args.settings, args.switches = tuple(args.settings), tuple(args.switches)
        return cls(**vars(args))


@dataclass(frozen=True)
class Answer:
    """What a turn took. time: when it ended. peak_bytes: most memory so far; None where the system does not tell.

    device, world_size: what it ran on: nobody may compare a CPU with a GPU, or two ranks that train together with two
    that each train alone. process_seconds: processor seconds of the process since its start. undisturbed_seconds: less
    those in which the main thread would have computed, but other threads or programs had the processors; the same as
    `seconds` where the system does not tell, or nobody asks.
    """

    seconds: float
    cpu_seconds: float
    time: float
    peak_bytes: int | None
    device: str
    world_size: int
    process_seconds: float = 0.0
    undisturbed_seconds: float = 0.0


def num_ranks() -> int:
    """As torchrun tells; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


class Turns:
    """The worker's side. steps: of a turn. total_steps: of all turns.

    displaced_seconds: of processor_time.py, where `undisturbed_seconds` counts. It is not imported here: the program of
    a peer may have a package `modules` of its own.
    """

    def __init__(
        self,
        steps: int,
        total_steps: int,
        device: str,
        world_size: int,
        displaced_seconds: Callable[[], float] = lambda: 0.0,
    ):
        self._steps, self._total_steps = steps, total_steps
        self._device, self._world_size = device, world_size
        self._displaced_seconds = displaced_seconds
        self._answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not look like an answer
        self._started = self._cpu_started = self._displaced = 0.0

    def wait(self) -> None:
        """Returns when it is this worker's turn; ends the process when the other end is gone."""
        if not os.read(sys.stdin.fileno(), 1):  # not sys.stdin: its buffer would take the other ranks' bytes
            sys.exit("the benchmark has gone")
        self._started, self._cpu_started = time.perf_counter(), time.process_time()
        self._displaced = self._displaced_seconds()

    def after_step(self, number: int) -> None:
        """After optimizer step `number` (from 1), which the device has finished where a turn ends."""
        if number % self._steps:
            return
        seconds = time.perf_counter() - self._started
        answer = Answer(
            seconds=seconds,
            cpu_seconds=time.process_time() - self._cpu_started,
            time=time.time(),
            peak_bytes=peak_bytes(),
            device=self._device,
            world_size=self._world_size,
            process_seconds=time.process_time(),
            undisturbed_seconds=seconds - (self._displaced_seconds() - self._displaced),
        )
        print(json.dumps(asdict(answer)), file=self._answers, flush=True)
        if number < self._total_steps:
            self.wait()


def peak_bytes() -> int | None:
    """The most memory that this process has had at once (resident), None where the system does not tell.

    From /proc: what getrusage gives is inherited from the process that started this one.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    fields = dict(line.split(":", 1) for line in status.read_text(encoding="ascii").splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024
