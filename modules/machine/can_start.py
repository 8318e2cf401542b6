"""Whether a run can start on this machine, as checked by the window, the dry run and the start itself.

Uses no torch and reads none of the run's files: trainer/checks.py checks those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from modules.config.errors import UserError
from modules.config.optimizers import OPTIMIZERS
from modules.config.TrainConfig import TrainConfig
from modules.config.validation import Problem, check_batch, find_problems
from modules.machine.backend import SHARDING_NEEDS_NCCL, backend_warning, choose_backend
from modules.machine.devices import Gpu, GpuUsage, Link, mixed_gpus_warning
from modules.machine.Machine import Machine
from modules.machine.memory_estimate import GIB, least_rank_bytes
from modules.machine.run_shape import RunShape, crowded_warning, run_shape
from modules.session.byte_sizes import spoken_bytes


@dataclass(frozen=True)
class StartFacts:
    """What is known about a run before it starts.

    usage: of all GPUs of the machine; empty: unknown, so whether the model fits right now is not checked.
    num_samples: of an epoch. needed_bytes: on each device. base_bytes: size of the base's files. None: unknown.
    """

    machine: Machine
    usage: Sequence[GpuUsage] = ()
    num_samples: int | None = None
    needed_bytes: float | None = None
    base_bytes: int | None = None


def can_start(config: TrainConfig, facts: StartFacts, resume: bool = False) -> list[Problem]:
    """The problems of the settings and of their run on this machine, blocking ones first.

    resume: the batch size is then the backup's.
    """
    found = [*find_problems(config), *device_problems(config, facts, resume)]
    return sorted(dict.fromkeys(found), key=lambda problem: not problem.blocking)


def device_problems(config: TrainConfig, facts: StartFacts, resume: bool = False) -> list[Problem]:
    """The part of `can_start` that depends on this machine."""
    try:
        shape = run_shape(config, facts.machine, facts.num_samples)
    except UserError as error:
        path = "device_indexes" if str(error).startswith("device_indexes") else "world_size"
        return [Problem(path, str(error))]
    return shape_problems(config, shape, facts, resume)


def shape_problems(config: TrainConfig, shape: RunShape, facts: StartFacts, resume: bool = False) -> list[Problem]:
    """`device_problems` of a run whose shape on this machine is known."""
    problems = list(_count_problems(config, shape, facts))
    if not resume:
        problems += _batch_problems(config, shape)
    if config.enable_multi_gpu:
        problems += _mix_problems(shape.gpus, facts.machine.links)
    if facts.needed_bytes is not None and facts.usage:
        problems += _memory_problems(shape.gpus, facts.usage, facts.needed_bytes)
    return sorted(problems, key=lambda problem: not problem.blocking)


def blocking(problems: Sequence[Problem], *paths: str) -> list[str]:
    """The messages of the blocking problems; if `paths` are given, only of those settings."""
    return [problem.message for problem in problems if problem.blocking and (not paths or problem.path in paths)]


def _count_problems(config: TrainConfig, shape: RunShape, facts: StartFacts) -> Iterator[Problem]:
    gpus, cores, memory_bytes = facts.machine.gpus, facts.machine.cores, facts.machine.memory_bytes
    num_ranks = shape.ranks_per_node
    if shape.num_ranks == 1:
        return
    if warning := backend_warning(config.distributed_backend, bool(gpus)):
        yield Problem("distributed_backend", warning, blocking=False)
    uses_gloo = choose_backend(config.distributed_backend, bool(gpus))[0] == "gloo"
    if config.distributed_strategy == "fsdp" and gpus and uses_gloo:
        yield Problem("distributed_strategy", SHARDING_NEEDS_NCCL, offer="ddp")
    rank_bytes = least_rank_bytes(config, None if gpus else facts.base_bytes)
    if memory_bytes is not None and num_ranks > 1 and num_ranks * rank_bytes > memory_bytes:
        fitting = max(1, int(memory_bytes / rank_bytes))
        message = (
            f"world_size {num_ranks}: the ranks need at least {spoken_bytes(num_ranks * rank_bytes)} of memory and "
            f"this machine has {spoken_bytes(memory_bytes)}; use {fitting if gpus else min(fitting, cores)}."
        )
        yield Problem("world_size", message)
    elif not gpus and (warning := crowded_warning(num_ranks, cores)):
        yield Problem("world_size", warning, blocking=False)


def _batch_problems(config: TrainConfig, shape: RunShape) -> Iterator[Problem]:
    steps = config.gradient_accumulation_steps
    if problem := check_batch(config.batch_size, config.batch_size_mode, shape.num_ranks, steps):
        yield problem
    if shape.num_samples is not None and 0 < shape.num_samples < shape.batch:
        parts = f"{shape.local_batch:g} x {shape.num_ranks} x {shape.accumulation}"
        message = f"{shape.num_samples} samples < {shape.batch} per step ({parts}): every step is a whole epoch."
        yield Problem("batch_size", message, blocking=False)
    grew = shape.batch / shape.batch_on_one
    is_tuned = OPTIMIZERS[config.optimizer.name].finds_own_step
    if grew > 1 and config.lr_scaling == "none" and not is_tuned:
        message = f"The effective batch grew {grew:g}x and lr_scaling is none: sqrt or linear is usual."
        yield Problem("lr_scaling", message, blocking=False)


def _mix_problems(chosen: Sequence[Gpu], links: Sequence[Sequence[Link | None]]) -> Iterator[Problem]:
    if message := mixed_gpus_warning(chosen):
        yield Problem("device_indexes", message, blocking=False)
    apart = [
        (a.index, b.index)
        for place, a in enumerate(chosen)
        for b in chosen[place + 1 :]
        if links and links[a.index][b.index] == "none"
    ]
    if apart:
        pairs = ", ".join(f"{a} and {b}" for a, b in apart[:3]) + (" ..." if len(apart) > 3 else "")
        message = (
            f"No direct link between GPUs {pairs}: gradients go through the CPU's memory; choose linked ones, or set "
            "gradient_reduce_precision to bf16."
        )
        yield Problem("device_indexes", message, blocking=False)


def _memory_problems(chosen: Sequence[Gpu], usage: Sequence[GpuUsage], needed_bytes: float) -> Iterator[Problem]:
    for gpu in chosen:
        used = usage[gpu.index].memory_used_bytes
        if gpu.memory_bytes is None or used is None or gpu.memory_bytes - used >= needed_bytes:
            continue
        by = ", ".join(f"{process.name or 'process'} {process.pid}" for process in usage[gpu.index].processes[:2])
        message = (
            f"The run needs about {needed_bytes / GIB:.1f} GiB and GPU {gpu.index} has "
            f"{(gpu.memory_bytes - used) / GIB:.1f} free{f' ({by})' if by else ''}: choose another, "
            "or a smaller precision."
        )
        yield Problem("device_indexes", message, blocking=False)
