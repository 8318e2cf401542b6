"""Pairs of ranks that leave each other in different ways; prints the exit codes of each pair.

They are forked from a process that has imported everything, and end as an interpreter does.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist
from torch import nn

from modules.config.TrainConfig import TrainConfig
from modules.distributed import StoreExchange
from modules.distributed.environments import spawn_variables
from modules.distributed.Runtime import Runtime
from modules.distributed.setup_distributed import cleanup_distributed, create_runtime, run_store, setup_distributed
from tests.support.ports import free_port

SECONDS = 60.0
WAYS = {
    "nothing is called": lambda runtime: None,
    "only cleanup": lambda runtime: cleanup_distributed(),
    "only close": lambda runtime: runtime.close(),
    "everything twice": lambda runtime: [cleanup_distributed(), runtime.close(), cleanup_distributed()],
}
MODEL_LAST = "the model is freed last"
FAILURES = {"rank 0 fails": 0, "rank 1 fails": 1}  # while the other rank is in a collective


def main(ways: list[str]) -> None:
    pairs = {way: start_pair(way, free_port()) for way in ways or (*WAYS, MODEL_LAST, *FAILURES)}
    print(json.dumps({way: [wait(pid) for pid in pids] for way, pids in pairs.items()}))


def start_pair(way: str, port: int) -> list[int]:
    return [start(way, rank, port) for rank in range(2)]


def start(way: str, rank: int, port: int) -> int:
    pid = os.fork()
    if pid == 0:
        os.environ |= spawn_variables(rank, 2, port, "run")
        live(way, rank)
    return pid


def live(way: str, rank: int) -> NoReturn:
    StoreExchange.KEEPALIVE_SECONDS = 0.0  # its thread is always inside the store, also at interpreter shutdown
    config = TrainConfig(distributed_backend="gloo")
    setup_distributed(config, tell=None)
    runtime = create_runtime(config)
    runtime.sum(torch.ones(1), torch.ones(()))
    if way in FAILURES:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        if rank == FAILURES[way]:
            raise RuntimeError("for a test")
        runtime.sum(torch.ones(1), torch.ones(()))
    if way == MODEL_LAST:
        leave_before_the_model(runtime)
        del runtime
        gc.collect()
        sys.exit()
    if rank == 1:  # it still needs the store when rank 0, the host, is about to end
        run_store().within("runtime-0").wait_for("left/0", 300.0)
    WAYS[way](runtime)
    sys.exit()


def leave_before_the_model(runtime: Runtime) -> None:
    """Rank 1 frees its model while a thread of gloo has a collective of a backward pass, which holds Python objects."""
    runtime.prepare(nn.Linear(1, 1))
    weight = torch.ones(1, requires_grad=True)
    weight.register_hook(lambda gradient: dist.all_reduce(torch.ones(1), async_op=True) and None)
    if runtime.is_main:
        time.sleep(0.5)
    weight.sum().backward()
    cleanup_distributed()


def wait(pid: int) -> int | str:
    """The exit code of a process, negative for a signal."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return "hung"


if __name__ == "__main__":
    main(sys.argv[1:])
