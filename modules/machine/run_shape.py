"""How the number of ranks changes a run: batch size, steps and learning rates.

Computed only from settings and known facts of the machine, so fast that a form can show it while the user types.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.config.batch_size import (
    accumulation_steps,
    global_batch,
    learning_rate_factor,
    scientific,
)
from modules.config.counted import counted
from modules.config.families import load_families
from modules.config.methods import facts_of
from modules.config.optimizers import facts_of_optimizer
from modules.machine.devices import (
    Gpu,
    check_device_indexes,
    default_num_ranks,
)

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
    batch = global_batch(config, num_ranks)
    accumulation = accumulation_steps(config, num_ranks, batch)
    factor = learning_rate_factor(config, num_ranks)
    batch_on_one = global_batch(config, 1)
    return RunShape(
        num_nodes=num_nodes,
        ranks_per_node=ranks_per_node,
        gpus=tuple(chosen_gpus(config, machine.gpus)),
        local_batch=batch / num_ranks / accumulation,
        accumulation=accumulation,
        batch=batch,
        batch_on_one=batch_on_one,
        learning_rate_factor=factor,
        rates=tuple(Rate(part, rate, rate * factor) for part, rate in _rates(config)),
        num_samples=num_samples,
        steps=_steps(config, num_samples, batch),
        steps_on_one=_steps(config, num_samples, batch_on_one),
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


def _rates(config: TrainConfig) -> Iterator[tuple[str, float]]:
    own = config.optimizer.learning_rate
    names = ("denoiser", "text_encoder") if facts_of(config).chooses_parts else ()
    trained = [(name, getattr(config, name)) for name in names if getattr(config, name).train]
    if not trained:
        yield config.method, own
    for name, part in trained:
        one_by_one = config.text_encoder.learning_rates if part is config.text_encoder else []
        yield from ((f"text encoder {number}", rate) for number, rate in enumerate(one_by_one, start=1))
        if not one_by_one or len(one_by_one) < len(load_families()[config.family].text_encoders):
            yield name.replace("_", " "), part.learning_rate or own


def _steps(config: TrainConfig, num_samples: int | None, batch: int) -> int | None:
    if num_samples is None:
        return None
    steps = _steps_of_epochs(config, num_samples, batch)
    return steps if config.max_steps is None else min(steps, config.max_steps)


def _steps_of_epochs(config: TrainConfig, num_samples: int, batch: int) -> int:
    return -(-num_samples // batch) * config.epochs


def steps_text(shape: RunShape, config: TrainConfig) -> str:
    """How the number of steps comes about, such as "708 samples x 2 epochs / 4 = 354 steps"."""
    if shape.steps is None or shape.num_samples is None:
        return "the images are not counted yet"
    epochs = counted(config.epochs, "epoch")
    steps = _steps_of_epochs(config, shape.num_samples, shape.batch)
    text = f"{counted(shape.num_samples, 'sample')} x {epochs} / {shape.batch} = {counted(steps, 'step')}"
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
