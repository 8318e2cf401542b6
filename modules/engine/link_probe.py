"""Measures how fast ranks exchange gradients, with a short all-reduce on each pair of devices and on all of them.

    python -m modules.distributed.probe --devices 0,1,2 --backend auto

A readable table goes to stderr, JSON to stdout. Exit code 0: success; 1: a rank failed, and the JSON says which one;
2: invalid arguments. `launch_distributed_training` runs the ranks, and names the one that dies, raises or hangs.

    {"backend": "nccl", "devices": [0, 1, 2], "pairs": [{"ranks": [0, 1], "gb_per_s": 41.7}, ...],
     "all": {"ranks": [0, 1, 2], "gb_per_s": 38.2}, "bytes": 67108864, "seconds": 2.0, "failed": null}

If a rank failed, `failed` is {"rank": 1, "text": "..."}, `pairs` has the measurements before the failure, and `all` is
null. If several ranks hang in the same all-reduce, `rank` is the first of them and `text` names the others.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from modules.config.errors import UserError
from modules.config.installation import PACKAGE
from modules.machine.backend import Backend, choose_backend
from modules.session.printing import print_line, print_text
from modules.session.TerminalCallbacks import TerminalCallbacks

if TYPE_CHECKING:
    from modules.engine.launch import RanksFailed

COMMAND = f"{PACKAGE}.distributed.probe"
DEFAULT_CPU_RANKS = 2
WAIT_SECONDS = 3600.0  # never reached: the heartbeats of the ranks that are waited for have shorter limits
Group = tuple[int, ...]


@dataclass(frozen=True)
class ProbeFailure:
    """rank: the rank that failed; None if the measurement was stopped."""

    rank: int | None
    text: str


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
    failed: ProbeFailure | None = None

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
    """Measures each pair of ranks, then all ranks together. Call it from the main thread.

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
    _launch(result, _groups(len(ranks_on)), timeout_seconds)
    return result


def measure_groups(
    rank: int,
    world_size: int,
    *,
    groups: Sequence[Group],
    num_gpus: int,
    num_bytes: int,
    seconds: float,
    timeout_seconds: float,
    results: str,
) -> None:
    """The program of each rank: one group after the other, so that none slows down another.

    num_gpus: that the ranks see; 0: they are on the CPU. results: the file to which each group's first rank appends
        {"ranks": [0, 1], "seconds": 0.01}, the median duration of an all-reduce on its slowest rank.
    """
    import torch
    import torch.distributed as dist

    from modules.distributed.all_reduce_speed import seconds_of_all_reduce
    from modules.distributed.Runtime import default_device
    from modules.distributed.setup_distributed import run_store
    from modules.engine.RankContext import rank_context

    context, store = rank_context(), run_store().within("probe")
    device = default_device([rank % num_gpus] if num_gpus else [])  # as setup_distributed assigns them
    values = torch.empty(num_bytes // 4, dtype=torch.float32, device=device)
    with context.heartbeat.phase("measuring"):
        for number, group in enumerate(groups):
            if rank == 0:
                store.set(f"goes-on-{number}", not context.commands.stopping)
            if not store.wait_for(f"goes-on-{number}", WAIT_SECONDS):
                context.stopped = True
                return
            # One beat before and one after: a rank that hangs is behind those that wait for it.
            context.heartbeat.beat(timeout_seconds)
            if rank in group:
                members = dist.new_group(list(group), use_local_synchronization=True)
                own = seconds_of_all_reduce(values, members, group, seconds)
                slowest = torch.tensor(own, device=device)
                dist.all_reduce(slowest, dist.ReduceOp.MAX, group=members)
                if rank == group[0]:
                    with open(results, "a", encoding="utf-8") as file:
                        print(json.dumps({"ranks": group, "seconds": float(slowest)}), file=file)
                    store.set(f"measured-{number}", True)
                dist.destroy_process_group(members)
            context.heartbeat.beat(timeout_seconds)
            store.wait_for(f"measured-{number}", WAIT_SECONDS)


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
    order = list(dict.fromkeys(chosen))
    return backend, [order[rank % len(order)] if order else "cpu" for rank in range(num_ranks)]


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
        prog=f"python -m {COMMAND}", description="Measure how fast ranks exchange gradients."
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


def _table(result: ProbeResult) -> Iterator[str]:
    yield f"All-reduce of {result.bytes / 2**20:g} MiB by {result.backend}, bus bandwidth:"
    for speed in result.pairs:
        devices = join_words([result.devices[rank] for rank in speed.ranks])
        yield f"  ranks {join_words(speed.ranks):12} (devices {devices}) {speed.gb_per_s:10.2f} GB/s"
    if result.all:
        yield f"  all {len(result.all.ranks)} ranks {result.all.gb_per_s:10.2f} GB/s"
    if result.failed:
        yield result.failed.text


class _ToTerminal(TerminalCallbacks):
    def on_failed(self, text: str) -> None:
        """It is part of the result."""


def _groups(num_ranks: int) -> list[Group]:
    """All pairs, and all ranks together."""
    everyone = tuple(range(num_ranks))
    pairs: list[Group] = [*itertools.combinations(everyone, 2)]
    return pairs if num_ranks == 2 else [*pairs, everyone]


def _launch(result: ProbeResult, groups: Sequence[Group], timeout_seconds: float) -> None:
    """Measures `groups` on ranks of their own, and adds to `result` what they find."""
    from modules.engine.launch import RanksFailed, launch_ranks

    with tempfile.TemporaryDirectory() as folder, _only(result.devices):
        path = Path(folder) / "results.jsonl"
        path.touch()
        num_gpus = 0 if result.devices[0] == "cpu" else len(set(result.devices))
        arguments = {"groups": groups, "num_gpus": num_gpus, "num_bytes": result.bytes, "seconds": result.seconds}
        arguments |= {"timeout_seconds": timeout_seconds, "results": str(path)}
        failure = None
        try:
            launch_ranks(
                measure_groups,
                len(result.devices),
                result.backend,
                arguments,
                _ToTerminal(sys.stderr),
                falls_back=False,
            )
        except RanksFailed as error:
            failure = error
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    speeds = [_speed(tuple(one["ranks"]), one["seconds"], result.bytes) for one in found]
    result.pairs = [speed for speed in speeds if len(speed.ranks) == 2]
    if failure is not None:
        unfinished = groups[len(found)] if len(found) < len(groups) else None
        result.failed = ProbeFailure(failure.record.get("rank"), _failure_text(failure, result, unfinished))
    elif len(found) < len(groups):
        result.failed = ProbeFailure(None, "The measurement was stopped.")
    else:
        result.all = speeds[-1]


def _speed(ranks: Group, seconds: float, num_bytes: int) -> GroupSpeed:
    return GroupSpeed(ranks, bus_bandwidth(num_bytes, seconds, len(ranks)))


def _failure_text(failure: RanksFailed, result: ProbeResult, group: Group | None) -> str:
    record = failure.record
    text = str(failure).replace(" log/rank-", f" {failure.folder / 'log' / 'rank-'}")
    if group is None or record.get("phase") != "measuring":
        return text
    devices = join_words([result.devices[rank] for rank in group])
    what = f"All-reduce of {result.bytes / 2**20:g} MiB between ranks {join_words(group)} (devices {devices})"
    if record["kind"] == "hung" and result.backend == "nccl":
        text = f"{text.rstrip('.')}; if NCCL_P2P_DISABLE=1 fixes it, the direct link between the GPUs does not work."
    return f"{what}: {text}"


@contextlib.contextmanager
def _only(devices: Sequence[int | str]) -> Iterator[None]:
    """Inside, processes that are started see only these GPUs, in this order."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # that of the indexes
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    if devices[0] != "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_devices(list(dict.fromkeys(devices)), before)
    try:
        yield
    finally:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def visible_devices(devices: Sequence[int | str], visible: str | None) -> str:
    """The value of CUDA_VISIBLE_DEVICES that shows only `devices`, which count among those of `visible`."""
    names = visible.split(",") if visible else None
    return ",".join(str(device) if names is None else names[int(device)].strip() for device in devices)


def join_words(values: Sequence[int | str]) -> str:
    """Such as "0, 1 and 2"."""
    words = [str(value) for value in values]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _gpu_indexes() -> list[int]:
    from modules.machine.devices import list_gpus

    return [gpu.index for gpu in list_gpus()]
