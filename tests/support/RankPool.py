"""Ranks in processes that stay, for the tests that need real ones: to start them takes many seconds.

A scenario is a function at the top of a module: `scenario(make_runtime, **arguments)`, run on every rank at once.
make_runtime(**settings): a runtime of its own, with settings of DataParallelSettings. Arguments and results are plain
data, as JSON holds it.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import ExitStack

    from modules.distributed.Runtime import Runtime

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 180.0  # each rank imports torch and diffusers, on what cores there are
SCENARIO_SECONDS = 60.0
GRACE_SECONDS = 2.0  # for the other ranks to say what they saw, after the first error

MakeRuntime = Callable[..., "Runtime"]


class RankPool:
    """`world_size` gloo ranks on this machine, started when first needed.

    After a failure they are ended, since one may be stuck, and the next scenario gets new ones.
    """

    def __init__(self, world_size: int, folder: Path):
        self.world_size = world_size
        self._folder = folder
        self._processes: list[subprocess.Popen] = []
        self._number = 0
        self._starts = 0

    def run(self, scenario: Callable[..., Any], seconds: float = SCENARIO_SECONDS, **arguments: Any) -> list[Any]:
        """What `scenario` gives on each rank.

        Raises AssertionError with the tracebacks, or with the stacks of ranks that take longer than `seconds`.
        """
        if not self._processes:
            self._start()
        self._number += 1
        name = f"{scenario.__module__}:{scenario.__qualname__}"
        task = {"number": self._number, "scenario": name, "seconds": seconds, "arguments": arguments}
        try:
            for process in self._processes:
                process.stdin.write(json.dumps(task).encode() + b"\n")
                process.stdin.flush()
            return self._results(name, time.monotonic() + seconds + 10)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the ranks at once."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            process.stdin.close()
        self._processes = []

    def _start(self) -> None:
        from modules.config.TrainConfig import TrainConfig
        from modules.distributed.environments import spawn_variables

        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self._starts += 1
        run_id = f"pool-{self._starts}"
        for rank in range(self.world_size):
            variables = spawn_variables(rank, TrainConfig(), self.world_size, port, run_id)
            variables |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
            with self._log(rank).open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tests.support.RankPool", str(self._folder)],
                    cwd=ROOT,
                    env={**os.environ, **variables},
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            self._processes.append(process)

    def _results(self, name: str, deadline: float) -> list[Any]:
        deadline += 0 if self._is_up() else START_SECONDS
        paths = [self._folder / f"{self._number}-{rank}.json" for rank in range(self.world_size)]
        first_error = float("inf")
        while True:
            done = {rank: json.loads(path.read_text()) for rank, path in enumerate(paths) if path.exists()}
            errors = {rank: result["error"] for rank, result in done.items() if result["error"]}
            if len(done) == self.world_size and not errors:
                for path in paths:
                    path.unlink()
                return [done[rank]["value"] for rank in range(self.world_size)]
            now = time.monotonic()
            ended = [rank for rank, process in enumerate(self._processes) if process.poll() is not None]
            if errors or ended or now > deadline:
                first_error = min(first_error, now)
            if first_error + GRACE_SECONDS < now:
                raise AssertionError(self._report(name, errors, ended))
            time.sleep(0.01)

    def _is_up(self) -> bool:
        return all((self._folder / f"up-{process.pid}").exists() for process in self._processes)

    def _report(self, name: str, errors: dict[int, str], ended: list[int]) -> str:
        parts = [f"{name} failed on {self.world_size} ranks"]
        for rank in range(self.world_size):
            code = f" (ended with {self._processes[rank].returncode})" if rank in ended else ""
            parts.append(f"--- rank {rank}{code}\n{errors.get(rank, '')}")
            if rank not in errors:
                parts.append(self._log(rank).read_text(errors="replace")[-4000:])
        return "\n".join(parts)

    def _log(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.log"


def run_alone(scenario: Callable[..., Any], **arguments: Any) -> Any:
    """What `scenario` gives on one rank: this process."""
    import torch

    from modules.distributed.Runtime import Runtime

    return scenario(lambda **settings: Runtime(torch.device("cpu")), **json.loads(json.dumps(arguments)))


def serve(folder: Path) -> None:
    """The life of a rank: scenario after scenario from stdin, until it is closed."""
    from contextlib import ExitStack

    # before the first scenario, whose time is limited; both load their parts late
    from diffusers import StableDiffusionPipeline  # noqa: F401
    from peft import LoraConfig  # noqa: F401

    from modules.config.TrainConfig import TrainConfig
    from modules.distributed.setup_distributed import setup_distributed

    _, rank, _ = setup_distributed(TrainConfig(distributed_backend="gloo"))
    (folder / f"up-{os.getpid()}").touch()
    for line in sys.stdin:
        task = json.loads(line)
        faulthandler.dump_traceback_later(task["seconds"], exit=True)
        result = {"value": None, "error": None}
        try:
            with ExitStack() as runtimes:
                module, name = task["scenario"].split(":")
                make_runtime = _runtime_maker(task["number"], runtimes)
                result["value"] = getattr(importlib.import_module(module), name)(make_runtime, **task["arguments"])
        except BaseException:
            result["error"] = traceback.format_exc()
        faulthandler.cancel_dump_traceback_later()
        path = folder / f"{task['number']}-{rank}.json"
        path.with_suffix(".part").write_text(json.dumps(result))
        path.with_suffix(".part").rename(path)


def _runtime_maker(number: int, runtimes: ExitStack) -> MakeRuntime:
    """Each runtime has keys of its own in the store; `runtimes` closes them after a scenario that has succeeded."""
    import torch
    from torch.distributed import PrefixStore

    from modules.distributed.DataParallelRuntime import DataParallelRuntime, DataParallelSettings
    from modules.distributed.environments import find_environment
    from modules.distributed.setup_distributed import run_store

    made = 0

    def make_runtime(**settings: Any) -> Runtime:
        nonlocal made
        made += 1
        store = PrefixStore(f"scenario-{number}-{made}", run_store())
        settings = DataParallelSettings(**settings)
        runtime = DataParallelRuntime(torch.device("cpu"), find_environment(), store, settings)
        runtimes.push(lambda kind, error, trace: None if error else runtime.close())
        return runtime

    return make_runtime


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
