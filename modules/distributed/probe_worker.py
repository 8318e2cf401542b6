"""One rank of a communication probe; ProbeRanks starts it, sends it commands and ends it.

It exits as soon as its stdin is closed, even inside a collective, so that no rank outlives its parent process.

CHORUS_PROBE_FAULT=kind@rank injects a fault for tests: that rank sleeps, is killed by SIGKILL or exits with code 3
(kinds `sleep`, `kill`, `exit`) when its first measurement begins.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING, Any

from modules.config.errors import first_line
from modules.session.printing import print_text

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup, TCPStore

FAULT_VARIABLE = "CHORUS_PROBE_FAULT"
FAULT_EXIT_CODE = 3
WARM_UP_ROUNDS = 2
MIN_ROUNDS, MAX_ROUNDS = 3, 1000
PATIENCE = timedelta(hours=1)  # never reached: the parent process detects hangs and names the rank


@dataclass(frozen=True)
class RankTask:
    """device: the index of a GPU, or "cpu". num_bytes: buffer size. seconds: duration for each group."""

    rank: int
    world_size: int
    backend: str
    device: int | str
    num_bytes: int
    seconds: float


def main() -> None:
    task = RankTask(**json.loads(sys.argv[1]))
    starter = _Starter()
    try:
        _run(task, starter)
    except Exception as error:  # any error is reported to the parent process
        print_text(traceback.format_exc(), sys.stderr)
        starter.report("failed", text=f"{type(error).__name__}: {first_line(error)}")
        os._exit(1)  # destroying a process group whose other ranks are gone may hang


def _run(task: RankTask, starter: _Starter) -> None:
    import torch
    import torch.distributed as dist

    device = torch.device(task.device if task.device == "cpu" else f"cuda:{task.device}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are local; the host name may not resolve
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "=lo")  # as in a training: setup_distributed.py
    store = _open_store(task, starter)
    dist.init_process_group(task.backend, store=store, rank=task.rank, world_size=task.world_size, timeout=PATIENCE)
    values = torch.empty(task.num_bytes // 4, dtype=torch.float32, device=device)
    starter.report("joined")
    fault = os.environ.get(FAULT_VARIABLE)
    while "ranks" in (order := starter.order()):
        if fault:
            _break(fault, task.rank)
        starter.report("begun")
        group = dist.new_group(order["ranks"], timeout=PATIENCE, use_local_synchronization=True)
        starter.report("measured", seconds=_measure(values, group, order["ranks"], task.seconds))
        dist.destroy_process_group(group)
    dist.destroy_process_group()


def _open_store(task: RankTask, starter: _Starter) -> TCPStore:
    """The ranks' store; rank 0 hosts it on a free port."""
    import torch.distributed as dist

    hosts = task.rank == 0
    port = 0 if hosts else starter.order()["port"]
    listening = None
    if hosts and os.name == "posix":  # torch's own socket would listen on all addresses
        listener = socket.create_server(("127.0.0.1", 0))
        port, listening = listener.getsockname()[1], listener.detach()  # the store closes it
    store = dist.TCPStore(
        "127.0.0.1",
        port,
        task.world_size,
        is_master=hosts,
        timeout=PATIENCE,
        wait_for_workers=False,
        master_listen_fd=listening,
        use_libuv=os.name == "posix",  # PyTorch's Windows builds don't include libuv
    )
    if hosts:
        starter.report("store", port=store.port)
    return store


def _measure(values: Tensor, group: ProcessGroup, ranks: Sequence[int], seconds: float) -> float:
    """The median duration of an all-reduce of `values`, over as many rounds as fit into `seconds`.

    Raises RuntimeError if the sums are wrong.
    """
    import torch
    import torch.distributed as dist

    values.fill_(1)
    dist.all_reduce(values, group=group)
    if not torch.all(values == len(ranks)):
        # happens if an IOMMU redirects traffic between GPUs
        raise RuntimeError(f"the all-reduce of ranks {ranks} gave wrong sums; the link between them corrupts data")
    values.zero_()  # zeros don't overflow over many rounds
    once = _time_rounds(values, group, WARM_UP_ROUNDS)[-1]
    rounds = torch.tensor(rounds_that_fit(seconds, once), device=values.device)
    dist.all_reduce(rounds, dist.ReduceOp.MIN, group=group)  # the same on all ranks
    return median(_time_rounds(values, group, int(rounds)))


def rounds_that_fit(seconds: float, once: float) -> float:
    """The number of rounds of `once` seconds; always a float, because the dtype must be the same on all ranks."""
    return float(min(max(seconds / once, MIN_ROUNDS), MAX_ROUNDS))


def _time_rounds(values: Tensor, group: ProcessGroup, count: int) -> list[float]:
    """The duration of each of `count` all-reduces in seconds; on a GPU measured by events, without syncs in between."""
    import torch
    import torch.distributed as dist

    if values.device.type == "cuda":
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            dist.all_reduce(values, group=group)
            event.record()
        torch.cuda.synchronize(values.device)
        return [before.elapsed_time(after) / 1000 for before, after in itertools.pairwise(events)]
    times = [time.perf_counter()]
    for _ in range(count):
        dist.all_reduce(values, group=group)
        times.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(times)]


class _Starter:
    """The parent process: commands come from stdin, reports go to stdout.

    A separate thread reads, to answer pings and to notice the end of the parent process even inside a collective.
    """

    def __init__(self) -> None:
        self._reports = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of libraries must not mix with reports
        self._orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def order(self) -> dict[str, Any]:
        return self._orders.get()

    def report(self, event: str, **details: Any) -> None:
        print(json.dumps({"event": event, **details}), file=self._reports, flush=True)

    def _listen(self) -> None:
        # unbuffered: the interpreter can't exit while a thread holds the lock of a buffered stdin
        with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as lines:
            for line in lines:
                order = json.loads(line)
                if "ping" in order:
                    self.report("alive")
                else:
                    self._orders.put(order)
        os._exit(1)


def _break(fault: str, rank: int) -> None:
    kind, _, at = fault.partition("@")
    if int(at) != rank:
        return
    if kind == "sleep":
        time.sleep(PATIENCE.total_seconds())
    elif kind == "kill":
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    elif kind == "exit":
        os._exit(FAULT_EXIT_CODE)
    raise ValueError(f"{FAULT_VARIABLE} {fault}: the kinds are sleep, kill and exit")


if __name__ == "__main__":
    main()
