"""Measure what modules/machine/scaling.py predicts: steps of DDP and FSDP on CPU ranks that exchange by gloo.

The ranks don't compute but sleep, as if a GPU computed, so that few cores can serve several of them: what is compared
is how exchange and computation overlap, and what the exchange takes.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.distributed.environments import spawn_variables
from modules.machine.ports import next_free_port
from modules.machine.scaling import Fabric, Work, ddp_seconds, fsdp_seconds, measured_seconds

if TYPE_CHECKING:
    from torch import Tensor

    from modules.distributed.Runtime import Runtime

RANK_COUNTS = (1, 2, 4)
NUM_BLOCKS = 8
BLOCK_WEIGHTS = 2**21  # of 4 bytes
FORWARD_SECONDS, BACKWARD_SECONDS = 0.010, 0.020  # of a block
ROUNDS, STEPS = 12, 2
SIZES = (BLOCK_WEIGHTS // 8, BLOCK_WEIGHTS)  # of the tensors whose exchange is timed, in values


def measure() -> dict[str, Any]:
    """Number of ranks -> least seconds of a step by strategy, and of a collective by the bytes of the full tensor."""
    return {str(count): _measure(count) for count in RANK_COUNTS}


def predictions(measured: dict[str, Any]) -> list[tuple[int, str, float, float]]:
    """(ranks, strategy, seconds measured, seconds predicted) for each run on several ranks."""
    block_bytes = 4 * BLOCK_WEIGHTS
    share = BACKWARD_SECONDS / (FORWARD_SECONDS + BACKWARD_SECONDS)
    alone = measured["1"]["steps"]["ddp"]
    work = Work(alone, NUM_BLOCKS * block_bytes, NUM_BLOCKS * block_bytes, NUM_BLOCKS, share)
    rows = []
    for count in RANK_COUNTS[1:]:
        found = measured[str(count)]
        fitted = {name: _fitted(seconds_of) for name, seconds_of in found["collectives"].items()}
        fabric = Fabric(fitted["all_reduce"], fitted["all_gather"], fitted["reduce_scatter"])
        ddp = ddp_seconds(work, fabric, block_bytes)
        fsdp = fsdp_seconds(work, replace(fabric, overlaps=False))  # on CPUs, FSDP waits for each collective
        rows += [(count, "ddp", found["steps"]["ddp"], ddp), (count, "fsdp", found["steps"]["fsdp"], fsdp)]
    return rows


def _fitted(seconds_of: dict[str, float]) -> Callable[[float], float]:
    (small, first), (large, last) = ((int(size), seconds) for size, seconds in seconds_of.items())
    per_byte = max(0.0, (last - first) / (large - small))
    return measured_seconds(max(0.0, first - per_byte * small), per_byte)


def _measure(count: int) -> dict[str, Any]:
    import torch.multiprocessing as mp

    port = next_free_port(29600)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (count, port, folder), nprocs=count)
        return json.loads((Path(folder) / "figures.json").read_text(encoding="utf-8"))


def _rank(rank: int, count: int, port: int, folder: str) -> None:
    os.environ |= {**spawn_variables(rank, count, port, "scaling"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    import torch

    from modules.config.TrainConfig import TrainConfig
    from modules.distributed.setup_distributed import create_runtime, setup_distributed

    torch.set_num_threads(1)
    config = TrainConfig(distributed_backend="gloo", ddp_bucket_size_mb=1)  # a bucket for each block
    setup_distributed(config)
    strategies = {}
    for strategy in ("ddp", "fsdp"):
        config.distributed_strategy = strategy
        runtime = create_runtime(config)
        strategies[strategy] = _step_of(runtime)
    calls = {("steps", name, ""): step for name, step in strategies.items()}
    if count > 1:
        calls |= {("collectives", *key): call for key, call in _collectives(count).items()}
    seconds: dict[tuple[str, str, str], list[float]] = {key: [] for key in calls}
    for _ in range(ROUNDS):  # in turns, so that each meets the machine at the same speed
        for key, call in calls.items():
            seconds[key].append(_seconds(call, count))
    figures: dict[str, Any] = {"steps": {}, "collectives": {}}
    for (kind, name, size), values in seconds.items():
        fastest = round(min(values), 5)  # when other programs used the cores least
        if kind == "steps":
            figures[kind][name] = fastest
        else:
            figures[kind].setdefault(name, {})[size] = fastest
    if rank == 0:
        (Path(folder) / "figures.json").write_text(json.dumps(figures), encoding="utf-8")
    runtime.barrier("measuring")
    runtime.close()


def _step_of(runtime: Runtime) -> Callable[[], None]:
    """A forward and backward pass, with the exchange of gradients, of a model that sleeps."""
    import torch
    from torch import nn

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
            time.sleep(FORWARD_SECONDS)
            ctx.gradient = torch.zeros_like(weight)
            return inputs.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
            time.sleep(BACKWARD_SECONDS)
            return gradient, ctx.gradient

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(BLOCK_WEIGHTS // 64, 64))

        def forward(self, inputs: Tensor) -> Tensor:
            return Sleep.apply(inputs, self.weight)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Parameter(torch.zeros(4))
            self.blocks = nn.ModuleList(Block() for _ in range(NUM_BLOCKS))

        def forward(self, inputs: Tensor) -> Tensor:
            values = inputs + self.first
            for block in self.blocks:
                values = block(values)
            return values.sum()

    model = Model()
    call = runtime.prepare(model)

    def step() -> None:
        with runtime.accumulate(last=True):
            call(torch.ones(4)).backward()
        model.zero_grad(set_to_none=True)

    return step


def _collectives(count: int) -> dict[tuple[str, str], Callable[[], Any]]:
    """(name, bytes of the full tensor) -> a call of it, with the copies that DDP and FSDP make of what they send."""
    import torch
    import torch.distributed as dist

    calls: dict[tuple[str, str], Callable[[], Any]] = {}
    for size in SIZES:
        full, part = torch.ones(size), torch.ones(size // count)

        def all_reduce(full: Tensor = full) -> None:
            dist.all_reduce(full.clone())

        def all_gather(full: Tensor = full, part: Tensor = part) -> None:
            gathered = torch.empty_like(full)
            dist.all_gather_into_tensor(gathered, part.clone())
            gathered.clone()

        def reduce_scatter(full: Tensor = full, part: Tensor = part) -> None:
            dist.reduce_scatter_tensor(torch.empty_like(part), full.clone())

        for call in (all_reduce, all_gather, reduce_scatter):
            calls[call.__name__, str(4 * size)] = call
    return calls


def _seconds(call: Callable[[], Any], num_ranks: int) -> float:
    """The time of a call, which all ranks begin at the same moment."""
    import torch
    import torch.distributed as dist

    if num_ranks > 1:
        dist.all_reduce(torch.zeros(1))
    started = time.perf_counter()
    for _ in range(STEPS):
        call()
    return (time.perf_counter() - started) / STEPS
