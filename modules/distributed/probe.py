"""Measures how fast ranks exchange gradients, with a short all-reduce on each pair of devices and on all of them.

    python -m modules.distributed.probe --devices 0,1,2 --backend auto

A readable table goes to stderr, JSON to stdout. Exit code 0: success; 1: a rank failed, and the JSON says which one;
2: invalid arguments. This process does not import torch: it starts one process per rank (probe_worker.py), tells them
which ranks measure next, and ends them all if one fails or does not respond in time.

    {"backend": "nccl", "devices": [0, 1, 2], "pairs": [{"ranks": [0, 1], "gb_per_s": 41.7}, ...],
     "all": {"ranks": [0, 1, 2], "gb_per_s": 38.2}, "bytes": 67108864, "seconds": 2.0, "failed": null}

If a rank failed, `failed` is {"rank": 1, "text": "..."}, `pairs` has the measurements before the failure, and `all` is
null. `rank` is null if several ranks are waiting for each other.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from modules.config.errors import UserError
from modules.config.installation import PACKAGE
from modules.distributed.ProbeRanks import Failure, ProbeRanks, RankFailed, join_words
from modules.machine.backend import Backend, choose_backend
from modules.session.printing import print_line, print_text

DEFAULT_CPU_RANKS = 2


@dataclass(frozen=True)
class GroupSpeed:
    """gb_per_s: bus bandwidth in 10^9 bytes per second, independent of the number of ranks; see `bus_bandwidth`."""

    ranks: tuple[int, ...]
    gb_per_s: float


@dataclass
class ProbeResult:
    """devices: for each rank, the index of its GPU or "cpu". bytes: buffer size. seconds: duration for each group."""

    backend: Backend
    devices: list[int | str]
    bytes: int
    seconds: float
    pairs: list[GroupSpeed] = field(default_factory=list)
    all: GroupSpeed | None = None
    failed: Failure | None = None

    def as_values(self) -> dict[str, Any]:
        return asdict(self)


def probe(
    devices: Sequence[int] | None = None,
    backend: Literal["gloo", "nccl", "auto"] = "auto",
    world_size: int | None = None,
    megabytes: float = 64,
    seconds: float = 2,
    timeout_seconds: float = 20,
) -> ProbeResult:
    """Measures each pair of ranks, then all ranks together.

    devices: indexes of GPUs in CUDA's order; by default all GPUs, or the CPU if there is none.
    world_size: number of ranks; by default one for each GPU, or 2 on the CPU.
    megabytes: size of the buffer, in 2^20 bytes. seconds: duration of the measurement for each group.
    timeout_seconds: how long a group may take, including warm-up, before it counts as hung.
    A rank failure is part of the result; UserError is raised for invalid arguments.
    """
    if min(megabytes, seconds) <= 0 or seconds >= timeout_seconds:
        raise UserError(
            f"megabytes {megabytes:g}, seconds {seconds:g}, timeout {timeout_seconds:g}: all must be above 0 and "
            "timeout above seconds; leave them out for 64, 2 and 20."
        )
    chosen, ranks_on = choose_ranks(_gpu_indexes(), devices, backend, world_size)
    result = ProbeResult(chosen, ranks_on, bytes=max(4, int(megabytes * 2**20) // 4 * 4), seconds=seconds)
    everyone = tuple(range(len(ranks_on)))
    try:
        with ProbeRanks(chosen, ranks_on, result.bytes, seconds, timeout_seconds) as ranks:
            ranks.join()
            for group in itertools.combinations(everyone, 2):
                result.pairs.append(_measure(ranks, group, result.bytes))
            result.all = result.pairs[0] if len(everyone) == 2 else _measure(ranks, everyone, result.bytes)
    except RankFailed as error:
        result.failed = error.failure
    return result


def bus_bandwidth(num_bytes: int, seconds: float, num_ranks: int) -> float:
    """GB/s (10^9 bytes) that each link carries in an all-reduce of `num_bytes` over `num_ranks`.

    The algorithm bandwidth, bytes / time, falls with the number of ranks even on perfect links, because each rank must
    send and receive 2 (n - 1) / n times its buffer. Multiplied by that factor, it can be compared with the hardware's.
    Source: NVIDIA nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth", AllReduce.
    """
    return num_bytes / seconds / 1e9 * 2 * (num_ranks - 1) / num_ranks


def choose_ranks(
    gpus: Sequence[int],
    devices: Sequence[int] | None,
    backend: Literal["gloo", "nccl", "auto"],
    world_size: int | None,
) -> tuple[Backend, list[int | str]]:
    """The backend, and the device of each rank. gpus: indexes of the available GPUs.

    Raises UserError if the arguments don't fit together.
    """
    if backend == "auto":
        backend, _ = choose_backend(backend, bool(gpus))
    if backend == "nccl" and not gpus:
        raise UserError("backend nccl: there is no NVIDIA GPU here; use gloo or auto.")
    wanted = list(devices or ())
    if not set(wanted) <= set(gpus):
        available = f"only {join_words(gpus)}" if gpus else "no GPU"
        raise UserError(f"devices {join_words(wanted)}: there is {available} here; choose others, or omit devices.")
    chosen = wanted or list(gpus)
    num_ranks = (len(chosen) or DEFAULT_CPU_RANKS) if world_size is None else world_size
    if backend == "nccl" and (num_ranks > len(chosen) or len(set(chosen)) < len(chosen)):
        raise UserError.at(
            "world_size",
            f"{num_ranks} on devices {join_words(chosen)}: nccl needs a GPU of its own for each rank; "
            "use fewer ranks or gloo.",
        )
    if num_ranks < 2:
        raise UserError.at("world_size", f"{num_ranks}: the probe needs at least 2 ranks; use 2 or more.")
    return backend, [chosen[rank % len(chosen)] if chosen else "cpu" for rank in range(num_ranks)]


def main(argv: list[str] | None = None) -> int:
    args = _parse(argv)
    try:
        result = probe(args.devices, args.backend, args.world_size, args.megabytes, args.seconds, args.timeout)
    except UserError as error:
        print_text(error, sys.stderr)
        return 2
    for line in _table(result):
        print_line(line, sys.stderr)
    text = json.dumps(result.as_values())
    print_line(text)
    if args.json:
        args.json.write_text(text + "\n", encoding="utf-8")
    return 1 if result.failed else 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {PACKAGE}.distributed.probe", description="Measure how fast ranks exchange gradients."
    )
    parser.add_argument("--devices", type=_indexes, metavar="0,1,...", help="GPUs (default: all)")
    parser.add_argument("--backend", choices=("auto", "nccl", "gloo"), default="auto")
    parser.add_argument(
        "--world-size", type=int, metavar="N", help="number of ranks (default: one for each GPU, or 2 on the CPU)"
    )
    parser.add_argument("--megabytes", type=float, default=64, help="size of the buffer, in 2^20 bytes")
    parser.add_argument("--seconds", type=float, default=2, help="duration for each group of ranks")
    parser.add_argument("--timeout", type=float, default=20, help="seconds before a group counts as hung")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON to FILE")
    args = parser.parse_args(argv)
    if args.json and not args.json.parent.is_dir():
        parser.error(f"--json {args.json}: there is no folder {args.json.parent}")  # now, not after measuring
    return args


def _indexes(text: str) -> list[int]:
    return [int(index) for index in text.split(",")]


def _measure(ranks: ProbeRanks, group: tuple[int, ...], num_bytes: int) -> GroupSpeed:
    return GroupSpeed(group, bus_bandwidth(num_bytes, ranks.seconds_of_all_reduce(group), len(group)))


def _table(result: ProbeResult) -> Iterator[str]:
    yield f"All-reduce of {result.bytes / 2**20:g} MiB by {result.backend}, bus bandwidth:"
    for speed in result.pairs:
        devices = join_words([result.devices[rank] for rank in speed.ranks])
        yield f"  ranks {join_words(speed.ranks):12} (devices {devices}) {speed.gb_per_s:10.2f} GB/s"
    if result.all:
        yield f"  all {len(result.all.ranks)} ranks {result.all.gb_per_s:10.2f} GB/s"
    if result.failed:
        yield result.failed.text


def _gpu_indexes() -> list[int]:
    from modules.machine.devices import list_gpus

    return [gpu.index for gpu in list_gpus()]


if __name__ == "__main__":
    sys.exit(main())
