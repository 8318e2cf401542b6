"""What the number of ranks does to a run: batch, steps, learning rates and memory, and what is wrong with the devices.

Numbers only, from settings and from what was asked of the machine before, so that a form can show them while one types.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.config.batch_size import (
    SELF_TUNING_OPTIMIZERS,
    accumulation_steps,
    global_batch,
    learning_rate_factor,
    scientific,
)
from modules.config.errors import UserError
from modules.config.validation import Problem, check_batch
from modules.machine.backend import backend_warning
from modules.machine.devices import (
    Gpu,
    GpuUsage,
    Link,
    check_device_indexes,
    default_num_ranks,
    mixed_gpus_warning,
)
from modules.machine.memory_estimate import GIB, least_rank_bytes
from modules.session.byte_sizes import spoken_bytes

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig


@dataclass(frozen=True)
class Rate:
    """The learning rate of one part of the model, before and after it is scaled for the ranks."""

    part: str
    before: float
    after: float


@dataclass(frozen=True)
class RunShape:
    """A run on so many ranks.

    batch: samples of one optimizer step. local_batch: of one rank in one micro-batch; a fraction where the ranks can't
    share the batch evenly. batch_on_one, steps_on_one: the same settings on one device.
    num_samples: of an epoch; it and the steps are None while the pictures are not counted.
    """

    num_nodes: int
    ranks_per_node: int
    local_batch: float
    accumulation: int
    batch: int
    batch_on_one: int
    rates: tuple[Rate, ...]
    num_samples: int | None = None
    steps: int | None = None
    steps_on_one: int | None = None

    @property
    def num_ranks(self) -> int:
        return self.num_nodes * self.ranks_per_node


def run_shape(config: TrainConfig, ranks_per_node: int, num_samples: int | None = None) -> RunShape:
    """ranks_per_node: as `default_num_ranks` says. num_samples: of an epoch, repeats counted; None: not known."""
    num_nodes = config.num_nodes if config.enable_multi_gpu else 1
    num_ranks = num_nodes * ranks_per_node
    batch = global_batch(config, num_ranks)
    accumulation = accumulation_steps(config, num_ranks, batch)
    factor = learning_rate_factor(config, num_ranks)
    batch_on_one = global_batch(config, 1)
    return RunShape(
        num_nodes=num_nodes,
        ranks_per_node=ranks_per_node,
        local_batch=batch / num_ranks / accumulation,
        accumulation=accumulation,
        batch=batch,
        batch_on_one=batch_on_one,
        rates=tuple(Rate(part, rate, rate * factor) for part, rate in _rates(config)),
        num_samples=num_samples,
        steps=_steps(config, num_samples, batch),
        steps_on_one=_steps(config, num_samples, batch_on_one),
    )


def shape_lines(shape: RunShape, config: TrainConfig) -> list[tuple[str, str]]:
    """(label, text) for people: processes, batch, steps and learning rate."""
    nodes = f"{shape.num_nodes} machine{'s' if shape.num_nodes > 1 else ''}"
    each = f" ({shape.ranks_per_node} on each)" if shape.num_nodes > 1 else ""
    devices = f"{shape.num_ranks} device{'s' if shape.num_ranks > 1 else ''}"
    parts = f"{shape.local_batch:g} per device x {devices} x {shape.accumulation} accumulation"
    return [
        ("Processes", f"{shape.num_ranks} on {nodes}{each}"),
        ("Batch", f"{parts} = {shape.batch} pictures a step"),
        ("Steps", _steps_text(shape, config)),
        ("Learning rate", "; ".join(_rate_text(rate, shape, config) for rate in shape.rates)),
    ]


def uses_torchrun(config: TrainConfig) -> bool:
    """Whether terminals and commands start the ranks by torchrun.

    Never on Windows: torchrun's rendezvous needs libuv, which PyTorch's builds for it come without
    (https://github.com/pytorch/pytorch/pull/196855).
    """
    return config.use_torchrun and sys.platform != "win32"


def chosen_gpus(config: TrainConfig, gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs that will train on this machine; those that do not exist are passed over."""
    chosen = [gpus[index] for index in config.device_indexes if index < len(gpus)] or list(gpus)
    return chosen[: (config.world_size or len(chosen)) if config.enable_multi_gpu else 1]


def ranks_here(config: TrainConfig, gpus: Sequence[Gpu], cores: int) -> int:
    """Ranks on this machine. Raises UserError as `default_num_ranks`."""
    if config.enable_multi_gpu:
        return default_num_ranks(config, gpus, cores)
    if gpus:  # else PyTorch may know some that NVIDIA's driver does not
        check_device_indexes(config.device_indexes, len(gpus))
    return 1


def crowded_warning(num_ranks: int, cores: int) -> str:
    """The sentence for more ranks on the CPU of one machine than it has cores; "" where each has one."""
    if num_ranks <= cores:
        return ""
    shared = f"{cores} CPU core{'s' if cores > 1 else ''}"
    return f"world_size {num_ranks}: {num_ranks} ranks share {shared} and wait for each other; use {cores}."


def find_device_problems(
    config: TrainConfig,
    shape: RunShape | None,
    gpus: Sequence[Gpu],
    cores: int,
    usage: Sequence[GpuUsage] = (),
    links: Sequence[Sequence[Link | None]] = (),
    needed_bytes: float | None = None,
    memory_bytes: int | None = None,
    base_bytes: int | None = None,
) -> list[Problem]:
    """What is wrong with the run on the devices of this machine, the blocking problems first.

    shape: None where `ranks_here` has refused. usage, links: of all `gpus`, empty while not known.
    needed_bytes: on each device. memory_bytes: of this machine, base_bytes: of the base's files; None: not known.
    """
    problems = list(_count_problems(config, gpus, cores, memory_bytes, base_bytes))
    if shape is not None:
        problems += _batch_problems(config, shape)
    chosen = chosen_gpus(config, gpus)
    if config.enable_multi_gpu:
        problems += _mix_problems(chosen, links)
    if needed_bytes is not None and usage:
        problems += _memory_problems(chosen, usage, needed_bytes)
    return sorted(problems, key=lambda problem: not problem.blocking)


def _rates(config: TrainConfig) -> Iterator[tuple[str, float]]:
    own = config.optimizer.learning_rate
    names = ("denoiser", "text_encoder") if config.method in ("lora", "full") else ()
    trained = [(name, getattr(config, name)) for name in names if getattr(config, name).train]
    if not trained:
        yield config.method, own
    for name, part in trained:
        yield name.replace("_", " "), part.learning_rate or own


def _steps(config: TrainConfig, num_samples: int | None, batch: int) -> int | None:
    if num_samples is None:
        return None
    steps = -(-num_samples // batch) * config.epochs
    return steps if config.max_steps is None else min(steps, config.max_steps)


def _steps_text(shape: RunShape, config: TrainConfig) -> str:
    if shape.steps is None:
        return "the pictures are not counted yet"
    epochs = f"{config.epochs} epoch{'s' if config.epochs > 1 else ''}"
    text = f"{shape.num_samples:,} samples x {epochs} / {shape.batch} = {shape.steps:,} steps"
    if shape.num_ranks == 1:
        return text
    return f"{text} (one device: {shape.steps_on_one:,})"


def _rate_text(rate: Rate, shape: RunShape, config: TrainConfig) -> str:
    start = f"{rate.part} " if len(shape.rates) > 1 else ""
    if rate.after != rate.before:
        rule = f"sqrt({shape.num_ranks})" if config.lr_scaling == "sqrt" else str(shape.num_ranks)
        return f"{start}{scientific(rate.before)} x {rule} = {scientific(rate.after)}"
    text = f"{start}{scientific(rate.before)}"
    if shape.num_ranks == 1:
        return text
    if config.batch_size_mode == "global":
        return f"{text}, unchanged (global batch)"
    if config.optimizer.name in SELF_TUNING_OPTIMIZERS:
        return f"{text}, unchanged ({config.optimizer.name} finds its own step)"
    return f"{text}, unchanged (rule: none)"


def _count_problems(
    config: TrainConfig, gpus: Sequence[Gpu], cores: int, memory_bytes: int | None, base_bytes: int | None
) -> Iterator[Problem]:
    try:
        num_ranks = ranks_here(config, gpus, cores)
    except UserError as error:
        path = "device_indexes" if str(error).startswith("device_indexes") else "world_size"
        yield Problem(path, str(error))
        return
    if not config.enable_multi_gpu or num_ranks * config.num_nodes == 1:
        return
    if warning := backend_warning(config.distributed_backend, bool(gpus)):
        yield Problem("distributed_backend", warning, blocking=False)
    rank_bytes = least_rank_bytes(config, None if gpus else base_bytes)
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
    is_tuned = config.optimizer.name in SELF_TUNING_OPTIMIZERS
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
