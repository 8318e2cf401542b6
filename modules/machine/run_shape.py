"""How the number of ranks changes a run: batch size, steps and learning rates.

Computed only from settings and known facts of the machine, so fast that a form can show it while the user types.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from modules.config.batch_size import (
    accumulation_steps,
    global_batch,
    learning_rate_factor,
    scientific,
)
from modules.config.counted import counted
from modules.config.optimizers import facts_of_optimizer
from modules.config.rates import rates_of
from modules.config.steps import count_steps, planned_steps, total_steps
from modules.machine.backend import Backend, choose_backend
from modules.machine.devices import (
    Gpu,
    check_device_indexes,
    default_num_ranks,
)
from modules.machine.strategy import Strategy, choose_strategy

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.machine.Machine import Machine


@dataclass(frozen=True)
class Rate:
    """The learning rate of one part of the model, before and after it is scaled for the ranks."""

    part: str
    before: float
    after: float


@dataclass(frozen=True)
class RunShape:
    """A run on the ranks that its settings give it on a machine.

    gpus: that train on this machine; empty: the CPU. batch: samples of one optimizer step. local_batch: of one rank in
    one micro-batch; fractional if the batch does not divide evenly. learning_rate_factor: of every rate, for the ranks.
    batch_on_one, steps_on_one: with the same settings on one device.
    num_samples: of an epoch; it and the steps are None while the images are not counted.
    strategy: with distributed_strategy auto what is expected, as the ranks decide by the memory of all their GPUs.
    backend, strategy: each with the reason, a clause.
    """

    num_nodes: int
    ranks_per_node: int
    gpus: tuple[Gpu, ...]
    local_batch: float
    accumulation: int
    batch: int
    batch_on_one: int
    learning_rate_factor: float
    rates: tuple[Rate, ...]
    backend: Backend
    backend_reason: str
    strategy: Strategy
    strategy_reason: str
    num_samples: int | None = None
    steps: int | None = None
    steps_on_one: int | None = None

    @property
    def num_ranks(self) -> int:
        return self.num_nodes * self.ranks_per_node


def run_shape(config: TrainConfig, machine: Machine, num_samples: int | None = None) -> RunShape:
    """The run on this `machine`. num_samples: of an epoch, including repeats; None: unknown.

    Raises UserError as `ranks_here` does.
    """
    ranks_per_node = ranks_here(config, machine.gpus, machine.cores)
    num_nodes = config.num_nodes if config.enable_multi_gpu else 1
    num_ranks = num_nodes * ranks_per_node
    gpus = tuple(chosen_gpus(config, machine.gpus))
    sizes = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes is not None]
    backend, why_backend = choose_backend(config.distributed_backend, bool(machine.gpus), machine.system != "win32")
    can_share = sizes and backend == "nccl"
    strategy, why_strategy = choose_strategy(config, num_ranks, min(sizes) if can_share else None)
    batch, factor = global_batch(config, num_ranks), learning_rate_factor(config, num_ranks)
    accumulation = accumulation_steps(config, num_ranks, batch)
    shape = RunShape(
        num_nodes=num_nodes,
        ranks_per_node=ranks_per_node,
        gpus=gpus,
        local_batch=batch / num_ranks / accumulation,
        accumulation=accumulation,
        batch=batch,
        batch_on_one=global_batch(config, 1),
        learning_rate_factor=factor,
        rates=_scaled_rates(config, factor),
        backend=backend,
        backend_reason=why_backend,
        strategy=strategy,
        strategy_reason=why_strategy,
    )
    return shape if num_samples is None else counted_shape(shape, config, num_samples)


def counted_shape(
    shape: RunShape, config: TrainConfig, num_samples: int, backup: Mapping[str, Any] | None = None
) -> RunShape:
    """The shape of the run once its samples are counted.

    backup: state of the backup that the run resumes from, which keeps its global batch and its factor of the rates.
    """
    if backup:
        batch, factor = backup["run"]["global_batch"], backup["learning_rate_factor"]
        accumulation = accumulation_steps(config, shape.num_ranks, batch)
        shape = replace(
            shape,
            local_batch=batch / shape.num_ranks / accumulation,
            accumulation=accumulation,
            batch=batch,
            learning_rate_factor=factor,
            rates=_scaled_rates(config, factor),
        )
    return replace(
        shape,
        num_samples=num_samples,
        steps=total_steps(config, count_steps(num_samples, shape.batch), backup),
        steps_on_one=total_steps(config, count_steps(num_samples, shape.batch_on_one), backup),
    )


def shape_lines(shape: RunShape, config: TrainConfig) -> list[tuple[str, str]]:
    """(label, text) of processes, batch, steps and learning rate."""
    nodes = counted(shape.num_nodes, "machine")
    each = f" ({shape.ranks_per_node} on each)" if shape.num_nodes > 1 else ""
    devices = counted(shape.num_ranks, "device")
    parts = f"{shape.local_batch:g} per device x {devices} x {shape.accumulation} accumulation"
    return [
        ("Processes", f"{shape.num_ranks} on {nodes}{each}"),
        ("Batch", f"{parts} = {counted(shape.batch, 'image')} a step"),
        ("Steps", steps_text(shape, config)),
        ("Learning rate", "; ".join(_rate_text(rate, shape, config) for rate in shape.rates)),
    ]


def uses_torchrun(config: TrainConfig, system: str = "") -> bool:
    """Whether terminals and commands start the ranks with torchrun. system: as `sys.platform`, by default this one.

    Never on Windows: torchrun's rendezvous needs libuv, which PyTorch's Windows builds lack
    (https://github.com/pytorch/pytorch/pull/196855).
    """
    return config.use_torchrun and (system or sys.platform) != "win32"


def chosen_gpus(config: TrainConfig, gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs that will train on this machine; indexes that do not exist are ignored."""
    chosen = [gpus[index] for index in config.device_indexes if index < len(gpus)] or list(gpus)
    return chosen[: (config.world_size or len(chosen)) if config.enable_multi_gpu else 1]


def ranks_here(config: TrainConfig, gpus: Sequence[Gpu], cores: int) -> int:
    """The number of ranks on this machine. Raises UserError as `default_num_ranks` does."""
    if config.enable_multi_gpu:
        return default_num_ranks(config, gpus, cores)
    if gpus:  # else PyTorch may know devices that NVIDIA's driver does not
        check_device_indexes(config.device_indexes, len(gpus))
    return 1


def crowded_warning(num_ranks: int, cores: int) -> str:
    """A warning if one machine has more CPU ranks than cores, else ""."""
    if num_ranks <= cores:
        return ""
    shared = counted(cores, "CPU core")
    return f"world_size {num_ranks}: {counted(num_ranks, 'rank')} share {shared} and wait for each other; use {cores}."


def _scaled_rates(config: TrainConfig, factor: float) -> tuple[Rate, ...]:
    return tuple(Rate(part, rate, rate * factor) for part, rate in rates_of(config).items())


def steps_text(shape: RunShape, config: TrainConfig) -> str:
    """How the number of steps comes about, such as "708 samples: 12 steps an epoch x 2 epochs = 24 steps".

    The last step of an epoch may be smaller than the others, so the samples are not divided here.
    """
    if shape.steps is None or shape.num_samples is None:
        has_images = any(concept.enabled for concept in config.concepts)
        return "the images are not counted yet" if has_images else "known once there is a folder of images"
    epochs = counted(config.epochs, "epoch")
    per_epoch = count_steps(shape.num_samples, shape.batch)
    steps = planned_steps(config.epochs, per_epoch)
    each = f"{counted(shape.num_samples, 'sample')}: {counted(per_epoch, 'step')} an epoch"
    text = f"{each} x {epochs} = {counted(steps, 'step')}"
    if shape.steps < steps:
        text += f", limited to {shape.steps:,} by Max steps"
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
    if facts_of_optimizer(config.optimizer).finds_own_step:
        return f"{text}, unchanged ({config.optimizer.name} finds its own step)"
    return f"{text}, unchanged (rule: none)"
