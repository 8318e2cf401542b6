"""Ranks in processes that stay, for the tests that need real ones: to start them takes many seconds.

A scenario is a function at the top of a module: `scenario(make_runtime, **arguments)`, run on every rank at once.
make_runtime(strategy, **settings): a runtime of its own, with settings of DataParallelSettings. Arguments and results
are plain data, as JSON holds it.
"""

from __future__ import annotations

import faulthandler
import importlib
import itertools
import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support.fork_server import start_forked
from tests.support.ports import free_port

if TYPE_CHECKING:
    from modules.distributed.Runtime import Runtime

START_SECONDS = 180.0  # includes the imports
SCENARIO_SECONDS = 300.0  # only a hanging scenario takes this long
GRACE_SECONDS = 2.0  # for the other ranks to report after the first error

MakeRuntime = Callable[..., "Runtime"]


class Rank(NamedTuple):
    process: BaseProcess
    connection: Connection


class RankPool:
    """`world_size` gloo ranks on this machine, started when first needed.

    device: on which all of them compute; gloo's ranks may share a GPU.
    After a failure they are ended, since one may be stuck, and the next scenario gets new ones.
    """

    def __init__(self, world_size: int, folder: Path, device: str = "cpu"):
        self.world_size = world_size
        self._device = device
        self._folder = folder
        self._ranks: list[Rank] = []
        self._starts = 0

    def run(self, scenario: Callable[..., Any], seconds: float = SCENARIO_SECONDS, **arguments: Any) -> list[Any]:
        """Runs `scenario` on every rank and returns the results.

        Raises AssertionError with the tracebacks, or with the stacks of ranks that take longer than `seconds`.
        """
        name = f"{scenario.__module__}:{scenario.__qualname__}"
        task = {"scenario": name, "seconds": seconds, "arguments": arguments}
        try:
            if not self._ranks:
                self._start()
            for rank in self._ranks:
                rank.connection.send(json.dumps(task))
            return self._answers(name, seconds + 10)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the ranks immediately."""
        for rank in self._ranks:
            rank.process.kill()
        for rank in self._ranks:
            rank.process.join()
            rank.connection.close()
        self._ranks = []

    def _start(self) -> None:
        from modules.distributed.environments import spawn_variables

        port = free_port()
        self._starts += 1
        for rank in range(self.world_size):
            # the environment of this test instead of that of the test which started the fork server
            variables = {**os.environ, "OMP_NUM_THREADS": "1"}
            variables |= {"CUDA_VISIBLE_DEVICES": ""} if self._device == "cpu" else {}
            variables |= spawn_variables(rank, self.world_size, port, f"pool-{self._starts}")
            ours, theirs = multiprocessing.Pipe()
            process = self._start_rank(theirs, variables, self._log(rank))
            theirs.close()
            self._ranks.append(Rank(process, ours))
        self._answers("The start", START_SECONDS)

    def _start_rank(self, connection: Connection, variables: dict[str, str], log: Path) -> BaseProcess:
        arguments = (connection, variables, log, self._device)
        if self._device == "cpu":
            return start_forked(serve, *arguments)
        # what was forked after `import diffusers`, which asks CUDA for devices, can't use CUDA
        process = multiprocessing.get_context("spawn").Process(target=serve, args=arguments, daemon=True)
        process.start()
        return process

    def _answers(self, name: str, seconds: float) -> list[Any]:
        """The next result of each rank."""
        answers: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + seconds
        while len(answers) < self.world_size:
            awaited = {rank.connection: number for number, rank in enumerate(self._ranks) if number not in answers}
            ready = wait(awaited, max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                rank = awaited[connection]
                try:
                    answers[rank] = json.loads(connection.recv())
                except (EOFError, ConnectionError):
                    self._ranks[rank].process.join(GRACE_SECONDS)
                    answers[rank] = {"error": f"It ended with {self._ranks[rank].process.exitcode}."}
                if answers[rank]["error"]:
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if len(answers) < self.world_size or any(answer["error"] for answer in answers.values()):
            raise AssertionError(self._report(name, answers))
        return [answers[rank]["value"] for rank in range(self.world_size)]

    def _report(self, name: str, answers: dict[int, dict[str, Any]]) -> str:
        parts = [f"{name} failed on {self.world_size} ranks"]
        for rank in range(self.world_size):
            said = answers.get(rank, {"error": "It has not answered."})["error"]
            parts.append(f"--- rank {rank}: {said}\n{self._log(rank).read_text(errors='replace')[-4000:]}")
        return "\n".join(parts)

    def _log(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.log"


def run_alone(scenario: Callable[..., Any], **arguments: Any) -> Any:
    """The result of `scenario` on a single rank, in this process."""
    import torch

    from modules.distributed.Runtime import Runtime

    return scenario(lambda **settings: Runtime(torch.device("cpu")), **json.loads(json.dumps(arguments)))


def serve(connection: Connection, variables: dict[str, str], log: Path, device: str) -> None:
    """The main function of a rank: joins the others and runs scenarios until the connection is closed."""
    os.environ.update(variables)
    with log.open("wb") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    _answer(connection, _join)
    for number in itertools.count():
        try:
            task = json.loads(connection.recv())
        except EOFError:
            return
        faulthandler.dump_traceback_later(task["seconds"], exit=True)
        _answer(connection, partial(_run, number, task, device))
        faulthandler.cancel_dump_traceback_later()


def _answer(connection: Connection, act: Callable[[], Any]) -> None:
    try:
        answer = json.dumps({"value": act(), "error": None})
    except BaseException:
        answer = json.dumps({"value": None, "error": traceback.format_exc()})
    connection.send(answer)


def _join() -> None:
    from modules.config.TrainConfig import TrainConfig
    from modules.distributed.setup_distributed import setup_distributed

    setup_distributed(TrainConfig(distributed_backend="gloo"))


def _run(number: int, task: dict[str, Any], device: str) -> Any:
    module, name = task["scenario"].split(":")
    with ExitStack() as runtimes:
        scenario = getattr(importlib.import_module(module), name)
        return scenario(_runtime_maker(number, runtimes, device), **task["arguments"])


def _runtime_maker(number: int, runtimes: ExitStack, device: str) -> MakeRuntime:
    """Creates a runtime with its own keys in the store; successful scenarios close it."""
    import torch

    from modules.distributed import ShardedRuntime as sharding
    from modules.distributed.DataParallelRuntime import DataParallelRuntime, DataParallelSettings
    from modules.distributed.environments import find_environment
    from modules.distributed.setup_distributed import run_store

    sharding.MIN_DIVIDED = 0  # so that tiny models are divided as large ones are
    made = 0

    def make_runtime(strategy: str = "ddp", **settings: Any) -> Runtime:
        nonlocal made
        made += 1
        runtime_class = DataParallelRuntime if strategy == "ddp" else sharding.ShardedRuntime
        store = run_store().within(f"scenario-{number}-{made}")
        settings = DataParallelSettings(**settings)
        runtime = runtime_class(torch.device(device), find_environment(), store, settings)
        runtimes.push(lambda kind, error, trace: None if error else runtime.close())
        return runtime

    return make_runtime
