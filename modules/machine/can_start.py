"""Whether a run can start on this machine, as checked by the window, the dry run and the start itself.

Uses no torch and reads none of the run's files: trainer/checks.py checks those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from modules.config.counted import counted
from modules.config.describe import value_at
from modules.config.errors import UserError
from modules.config.optimizers import facts_of_optimizer
from modules.config.problems import Problem, Remedy, set_to
from modules.config.rules.ranks import check_batch
from modules.config.TrainConfig import TrainConfig
from modules.config.validation import find_problems
from modules.machine.backend import backend_warning, sharding_needs_nccl
from modules.machine.devices import Gpu, GpuUsage, Link, mixed_gpus_warning
from modules.machine.Machine import Machine
from modules.machine.memory_estimate import GIB, least_rank_bytes, needed_bytes
from modules.machine.memory_remedy import memory_remedy, ram_remedy
from modules.machine.run_shape import RunShape, crowded_warning, run_shape
from modules.machine.strategy import with_strategy
from modules.machine.system_memory import (
    OTHER_BYTES,
    kept_in_ram,
    most_swapped,
    needed_in_ram,
    passing_in_ram,
    room_in_ram,
    without_open_swaps,
)
from modules.session.byte_sizes import spoken_bytes


@dataclass(frozen=True)
class StartFacts:
    """What is known about a run before it starts. All but the settings is gathered beforehand, as it may take seconds.

    machine: None while unknown, so nothing that depends on it is checked.
    usage: of all GPUs of the machine; empty: unknown, so their free memory is not checked.
    num_samples: of an epoch. base_bytes: size of the base's files. None: unknown.
    base_error: why the base can't be used, as a sentence, or "". found: what is wrong with images, files, folders and
    loggers, as far as it was found in the background.
    free_port: the first free one from initial_port on, 0 if there is none; None: unknown.
    free_workspace: an unused folder, if another run is active in workspace_dir; else "".
    """

    machine: Machine | None
    usage: Sequence[GpuUsage] = ()
    num_samples: int | None = None
    base_bytes: int | None = None
    base_error: str = ""
    found: Sequence[Problem] = ()
    free_port: int | None = None
    free_workspace: str = ""


def can_start(config: TrainConfig, facts: StartFacts, resume: bool = False) -> list[Problem]:
    """The problems of the settings, of their files and folders, and of their run on this machine, blocking ones first.

    resume: the batch size is then the backup's.
    """
    found = [*find_problems(config), *_place_problems(config, facts), *device_problems(config, facts, resume)]
    return sorted(dict.fromkeys(found), key=lambda problem: not problem.blocking)


def device_problems(config: TrainConfig, facts: StartFacts, resume: bool = False) -> list[Problem]:
    """The part of `can_start` that depends on the devices of this machine."""
    if facts.machine is None:
        return []
    try:
        shape = run_shape(config, facts.machine, facts.num_samples)
    except UserError as error:
        return [_missing_devices(config, facts.machine, error.problems[0])]
    return shape_problems(config, shape, facts, resume)


def shape_problems(config: TrainConfig, shape: RunShape, facts: StartFacts, resume: bool = False) -> list[Problem]:
    """`device_problems` of a run whose shape on this machine is known."""
    if facts.machine is None:
        return []
    problems = [*_count_problems(config, shape, facts, facts.machine), *_precision_problems(config, facts.machine)]
    if not resume:
        problems += _batch_problems(config, shape)
    if config.enable_multi_gpu:
        problems += _mix_problems(shape.gpus, facts.machine.links)
    config = with_strategy(config, shape)
    problems += _memory_problems(config, shape, facts, facts.machine)
    problems += _system_memory_problems(config, shape, facts, facts.machine)
    return sorted(problems, key=lambda problem: not problem.blocking)


def blocking(problems: Sequence[Problem], *paths: str) -> list[Problem]:
    """The blocking problems; if `paths` are given, only of those settings."""
    return [problem for problem in problems if problem.blocking and (not paths or problem.path in paths)]


def _place_problems(config: TrainConfig, facts: StartFacts) -> Iterator[Problem]:
    """Of files, folders and the port."""
    if facts.base_error:
        yield Problem("model.base", facts.base_error)
    yield from facts.found
    if facts.free_workspace:
        message = f"workspace_dir {config.workspace_dir!r} is in use by another run: choose another folder."
        name = facts.free_workspace.replace("\\", "/").rpartition("/")[2]
        yield Problem("workspace_dir", message, remedy=Remedy(f"Use {name}", {"workspace_dir": facts.free_workspace}))
    # A run on this machine alone takes the next free port by itself. Of several machines, which all have to know the
    # port, only the first one listens.
    listens = config.enable_multi_gpu and config.num_nodes > 1 and config.node_rank == 0
    if listens and facts.free_port not in (None, int(config.initial_port)):
        message = f"initial_port {config.initial_port} is in use: choose another one on every machine."
        free = set_to("initial_port", str(facts.free_port)) if facts.free_port else None
        yield Problem("initial_port", message, remedy=free)


def _missing_devices(config: TrainConfig, machine: Machine, refused: Problem) -> Problem:
    """What `run_shape` has refused, settings that name more devices than there are, with its remedy."""
    num_gpus = len(machine.gpus)
    if refused.path != "device_indexes":
        return replace(refused, remedy=set_to("world_size", len(config.device_indexes) or num_gpus))
    existing = [index for index in config.device_indexes if index < num_gpus]
    numbers = ", ".join(map(str, existing))
    text = f"Use GPU {numbers}" if existing else "Use all GPUs" if num_gpus else "Use the CPU"
    values: dict[str, object] = {"device_indexes": existing}
    if config.enable_multi_gpu and config.world_size is not None and num_gpus:
        values["world_size"] = None  # one rank on each of them
    return replace(refused, remedy=Remedy(text, values))


def _count_problems(config: TrainConfig, shape: RunShape, facts: StartFacts, machine: Machine) -> Iterator[Problem]:
    gpus, cores, memory_bytes = machine.gpus, machine.cores, machine.memory_bytes
    num_ranks = shape.ranks_per_node
    if shape.num_ranks == 1:
        return
    if warning := backend_warning(config.distributed_backend, shape.backend, shape.backend_reason):
        auto = set_to("distributed_backend", "auto", "Auto")
        yield Problem("distributed_backend", warning, blocking=False, remedy=auto)
    strategy, group = config.distributed_strategy, config.sharding_group_size
    if strategy in ("fsdp", "hsdp") and gpus and shape.backend == "gloo":
        ddp = set_to("distributed_strategy", "ddp", "DDP")
        yield Problem("distributed_strategy", sharding_needs_nccl(strategy), remedy=ddp)
    if strategy == "hsdp" and group and shape.num_ranks % group:
        message = (
            f"sharding_group_size {group}: {shape.num_ranks} GPUs can't be divided into groups of {group}; choose a "
            "number that divides them, or leave it empty."
        )
        yield Problem("sharding_group_size", message, remedy=Remedy("Leave it empty", {"sharding_group_size": None}))
    rank_bytes = least_rank_bytes(config, None if gpus else facts.base_bytes)
    if memory_bytes is not None and num_ranks > 1 and num_ranks * rank_bytes > memory_bytes:
        fitting = max(1, int(memory_bytes / rank_bytes))
        fitting = fitting if gpus else min(fitting, cores)
        message = (
            f"world_size {num_ranks}: the ranks need at least {spoken_bytes(num_ranks * rank_bytes)} of memory and "
            f"this machine has {spoken_bytes(memory_bytes)}; use {fitting}."
        )
        yield Problem("world_size", message, remedy=set_to("world_size", fitting))
    elif not gpus and (warning := crowded_warning(num_ranks, cores)):
        yield Problem("world_size", warning, blocking=False, remedy=set_to("world_size", cores))


def _precision_problems(config: TrainConfig, machine: Machine) -> Iterator[Problem]:
    """Half precision on a CPU that can only imitate it."""
    if machine.gpus or machine.cpu_formats is None:
        return
    names = {"bfloat16": "bf16", "float16": "fp16"}
    used = {
        "model.weight_dtype": names.get(config.model.weight_dtype, ""),
        "model.mixed_precision": config.model.mixed_precision.replace("no", ""),
    }
    slow = [path for path, name in used.items() if name and name not in machine.cpu_formats]
    if not slow:
        return
    values = {"model.weight_dtype": "float32", "model.mixed_precision": "no"}
    changed = {path: value for path, value in values.items() if used[path]}
    message = (
        f"{slow[0]} {value_at(config, slow[0])}: this machine trains on its CPU, which has no instructions for "
        f"{used[slow[0]]}, so steps take about ten times longer; use float32."
    )
    yield Problem(slow[0], message, blocking=False, remedy=Remedy("Set to float32", changed))


def _batch_problems(config: TrainConfig, shape: RunShape) -> Iterator[Problem]:
    steps = config.gradient_accumulation_steps
    if problem := check_batch(config.batch_size, config.batch_size_mode, shape.num_ranks, steps):
        yield problem
    if shape.num_samples is not None and 0 < shape.num_samples < shape.batch:
        message = f"{counted(shape.num_samples, 'sample')} < {shape.batch} per step: each step is a whole epoch."
        yield Problem("batch_size", message, blocking=False)
    grew = shape.batch / shape.batch_on_one
    is_tuned = facts_of_optimizer(config.optimizer).finds_own_step
    if grew > 1 and config.lr_scaling == "none" and not is_tuned:
        message = f"The effective batch grew {grew:g}x and lr_scaling is none: sqrt or linear is usual."
        yield Problem("lr_scaling", message, blocking=False, remedy=set_to("lr_scaling", "sqrt"))


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


def _memory_problems(config: TrainConfig, shape: RunShape, facts: StartFacts, machine: Machine) -> Iterator[Problem]:
    """Whether the run fits into the GPUs' memory, and into what other programs leave of it."""
    room = room_in_ram(config, machine.ram_bytes, shape.num_ranks, shape.ranks_per_node, facts.base_bytes)
    config = _with_most_swapped(config, shape, facts, room)
    needed = needed_bytes(config, shape.num_ranks, facts.base_bytes)
    sizes = {gpu.index: gpu.memory_bytes for gpu in shape.gpus if gpu.memory_bytes is not None}
    if needed is None or not sizes:
        return
    smallest = min(sizes, key=sizes.__getitem__)
    if needed > sizes[smallest]:
        remedy = memory_remedy(config, shape.num_ranks, sizes[smallest], facts.base_bytes, room, shape.ranks_per_node)
        advice = f"{remedy.text[:1].lower()}{remedy.text[1:]}" if remedy else "choose a smaller model or precision"
        message = (
            f"The run needs about {needed / GIB:.1f} GiB on each GPU and GPU {smallest} has "
            f"{sizes[smallest] / GIB:.1f}: {advice}."
        )
        yield Problem("batch_size", message, blocking=False, remedy=remedy)
        return
    for index, size in sizes.items():
        used = facts.usage[index].memory_used_bytes if facts.usage else None
        if used is None or size - used >= needed:
            continue
        by = ", ".join(f"{process.name or 'process'} {process.pid}" for process in facts.usage[index].processes[:2])
        remedy = memory_remedy(config, shape.num_ranks, size - used, facts.base_bytes, room, shape.ranks_per_node)
        message = (
            f"The run needs about {needed / GIB:.1f} GiB and GPU {index} has "
            f"{(size - used) / GIB:.1f} free{f' ({by})' if by else ''}: close other programs, choose another GPU, "
            "or a smaller precision."
        )
        yield Problem("device_indexes", message, blocking=False, remedy=remedy)


def _with_most_swapped(config: TrainConfig, shape: RunShape, facts: StartFacts, room: float | None) -> TrainConfig:
    """The settings with the number of swapped blocks that system memory limits, if it is open and they are too many."""
    every, most = (
        most_swapped(config, shape.num_ranks, shape.ranks_per_node, limit, facts.base_bytes) for limit in (None, room)
    )
    if config.model.blocks_to_swap is not None or most == every:
        return config
    return replace(config, model=replace(config.model, blocks_to_swap=most))


def _system_memory_problems(
    config: TrainConfig, shape: RunShape, facts: StartFacts, machine: Machine
) -> Iterator[Problem]:
    """Whether what the ranks take of the system memory fits there, and can be pinned. An open number of swapped blocks
    is chosen so that they fit."""
    if machine.ram_bytes is None or not shape.gpus:
        return
    config = without_open_swaps(config)
    num_ranks, ranks, has = shape.num_ranks, shape.ranks_per_node, machine.ram_bytes / GIB
    kept = kept_in_ram(config, num_ranks, ranks, facts.base_bytes)
    total = sum(kept.values())
    if (needed_in_ram(config, num_ranks, ranks, facts.base_bytes) or 0.0) > machine.ram_bytes - OTHER_BYTES:
        yield _full_memory_problem(config, shape, facts, machine.ram_bytes)
    elif machine.pinnable_bytes is not None and ranks * total > machine.pinnable_bytes:
        system = "Windows" if machine.system == "win32" else "WSL"
        message = (
            f"{_keeps(kept, ranks)}, and {system} lets programs pin only about {machine.pinnable_bytes / GIB:.1f} of "
            f"its {has:.1f} GiB: steps wait for copies of the rest; keep less there, or train on Linux."
        )
        yield Problem(max(kept, key=kept.__getitem__), message, blocking=False)


def _full_memory_problem(config: TrainConfig, shape: RunShape, facts: StartFacts, ram_bytes: int) -> Problem:
    """That the ranks need more system memory than there is, at the setting that takes the most."""
    num_ranks, ranks = shape.num_ranks, shape.ranks_per_node
    kept = kept_in_ram(config, num_ranks, ranks, facts.base_bytes)
    passing = passing_in_ram(config, num_ranks, facts.base_bytes)
    path, most = max({**passing, **kept}.items(), key=itemgetter(1))
    room = room_in_ram(config, ram_bytes, num_ranks, ranks, facts.base_bytes)
    # without room, nothing that stays there helps
    remedy = ram_remedy(config, num_ranks, ranks, room, facts.base_bytes) if kept and room else None
    if path in kept:
        text = _keeps(kept, ranks)
        advice = "use fewer ranks" if ranks > 1 else "choose a smaller model"
    elif path == "model.base":
        text = f"{_who(ranks)} takes about {most / GIB:.1f} GiB of system memory to load the model"
        advice = "use fewer ranks" if ranks > 1 else "choose a smaller precision or model"
        if config.model.is_one_file:
            advice = "convert it to a diffusers folder, of which no part stays there"
    else:
        action = "backs up" if path == "backup.every" else "saves"
        text = f"The first rank {action} what trains from a copy of about {most / GIB:.1f} GiB in system memory"
        advice = "choose an optimizer with a smaller state, or a smaller precision"
    if remedy:
        advice = f"{remedy.text[:1].lower()}{remedy.text[1:]}"
    return Problem(
        path, f"{text}, and this machine has {ram_bytes / GIB:.1f}: {advice}.", blocking=False, remedy=remedy
    )


def _keeps(kept: Mapping[str, float], ranks: int) -> str:
    keep = f"The {ranks} ranks on this machine keep" if ranks > 1 else "The run keeps"
    return f"{keep} about {ranks * sum(kept.values()) / GIB:.1f} GiB in system memory ({', '.join(kept)})"


def _who(ranks: int) -> str:
    return f"Each of the {ranks} ranks on this machine" if ranks > 1 else "The run"
