"""Estimate the GPU memory of a run from its settings alone, by adding up weights and tensors of the published models.

docs/presets.md explains the rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from modules.config.families import model_of
from modules.machine.architectures import load_architectures
from modules.machine.memory.RunMemory import RunMemory
from modules.machine.system_memory import LIBRARY_BYTES, most_swapped

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

GIB = 2**30
SYSTEM_BYTES = 9 * GIB // 10
"""Of each GPU, left to its display and other programs: what a preset for a class of memory may not count on."""
_LARGEST_SHARE = 0.95  # of a large GPU, that a preset may count on
CUDA_BYTES = 3 * GIB // 5
"""CUDA's context with the kernels of torch, in a process: what they took on an H200, and less on smaller GPUs."""
CUBLAS_BYTES = 2 * 2**25
"""Its workspaces on Hopper and Blackwell, and four times what they are elsewhere: torch keeps one for each thread that
multiplies matrices, which are ours and autograd's (aten/src/ATen/cuda/CublasHandlePool.cpp)."""
PROCESS_BYTES = CUDA_BYTES + CUBLAS_BYTES
_NCCL_BYTES = 0.25 * GIB  # its buffers between ranks


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on one GPU.

    weights, gradients, optimizer, average, graphs: held throughout the training. activations: held during forward and
    backward. stepping: held during the optimizer step, when there are no activations. caching: the total while images
    and captions are encoded before the training. sampling: the total while samples are made, 0 without sampling.
    process: used by CUDA and torch themselves.

    A fused backward pass steps while there are activations, which then include what stepping takes.
    """

    weights: float
    gradients: float
    optimizer: float
    average: float
    activations: float
    stepping: float
    caching: float
    sampling: float
    process: float
    graphs: float = 0.0

    @property
    def training(self) -> float:
        lasting = self.weights + self.gradients + self.optimizer + self.average + self.graphs
        return lasting + max(self.activations, self.stepping) + self.process

    @property
    def peak(self) -> float:
        return max(self.training, self.caching, self.sampling)


def estimate_memory(config: TrainConfig, num_ranks: int | None = None) -> MemoryEstimate | None:
    """The estimate; None for a family of unknown size. num_ranks: over all machines; None: as set, or one."""
    run = run_memory(config, num_ranks)
    if run is None:
        return None
    process = PROCESS_BYTES + (_NCCL_BYTES if run.num_ranks > 1 else 0)
    return MemoryEstimate(
        weights=run.weights,
        gradients=run.gradients,
        optimizer=run.optimizer,
        average=run.average,
        activations=run.activations,
        stepping=run.stepping,
        caching=run.caching + process,
        sampling=_sampling_bytes(run, process),
        process=process,
        graphs=run.graphs,
    )


def run_memory(config: TrainConfig, num_ranks: int | None = None) -> RunMemory | None:
    """What the estimate is made of, with the same arguments."""
    model = load_architectures().get(model_of(config).name)
    return None if model is None else RunMemory(config, model, num_ranks or _named_ranks(config))


def _sampling_bytes(run: RunMemory, process: float) -> float:
    """The total while samples are made, when the gradients are freed; 0 without samples."""
    added = run.samples.peak
    if not added:
        return 0
    total = added + (run.weights + run.optimizer + run.average + run.graphs + process)
    if run.config.ema.enabled and run.config.ema.sample and (run.trained_weight_bytes < 4 or run.sharing_ranks > 1):
        total += run.held_trained * run.trained_weight_bytes  # the EMA in the weights' precision, or replaced shards
    return total


def room_for_presets(memory: int) -> float:
    """The bytes that a preset for GPUs with `memory` GB may need."""
    return min(memory * GIB - SYSTEM_BYTES, _LARGEST_SHARE * memory * GIB)


def blocks_to_swap(
    config: TrainConfig,
    available_bytes: float,
    num_ranks: int,
    ranks_here: int = 1,
    room: float | None = None,
    base_bytes: int | None = None,
) -> int:
    """The smallest number of swapped blocks with which the run fits in the memory of a GPU; if none does, the largest
    for which there is room.

    room: what each rank may keep in system memory; None: unknown. A family of unknown size swaps none. For the other
    arguments see `kept_in_ram`.
    """
    most = most_swapped(config, num_ranks, ranks_here, room, base_bytes)
    for count in range(most):
        estimate = estimate_memory(replace(config, model=replace(config.model, blocks_to_swap=count)), num_ranks)
        assert estimate is not None  # None only for families of unknown size
        if estimate.peak <= available_bytes:
            return count
    return most


def needed_bytes(config: TrainConfig, num_ranks: int | None = None, base_bytes: int | None = None) -> float | None:
    """The estimated memory on each device, scaled down for a base that is smaller than its family's model. None for a
    family of unknown size. base_bytes: size of the base's files; None: unknown."""
    estimate = estimate_memory(config, num_ranks)
    if estimate is None:
        return None
    typical = model_of(config).typical_bytes
    # a model saved in half precision is twice as large in float32
    return estimate.peak * (min(1.0, 2 * base_bytes / typical) if base_bytes else 1.0)


def least_rank_bytes(config: TrainConfig, base_bytes: int | None = None) -> float:
    """A lower bound of the system memory that a rank needs, in bytes; actual use may be several times higher.

    It covers the libraries and, on the CPU, the trained weights with gradients and optimizer state. Frozen weights
    don't count: all ranks map the same file.
    base_bytes: size of the base's files if the rank trains on the CPU; a base that is smaller than the published model,
    or in half precision, counts in proportion. None: on a GPU, or unknown. A family of unknown size counts libraries
    only.
    """
    model = load_architectures().get(model_of(config).name)
    if not base_bytes or model is None:
        return LIBRARY_BYTES
    published_bytes = 4 * (model.denoiser + sum(model.text_encoders) + model.vae)
    share = min(1.0, base_bytes / published_bytes)
    memory = estimate_memory(config)
    assert memory is not None  # None only for families of unknown size
    whole = estimate_memory(replace(config, optimizer=replace(config.optimizer, fused_backward=False)))
    assert whole is not None  # as above
    weights = whole.gradients  # same number and dtype
    return LIBRARY_BYTES + share * (weights + memory.gradients + memory.optimizer)


def _named_ranks(config: TrainConfig) -> int:
    if not config.enable_multi_gpu:
        return 1
    return (config.world_size or len(config.device_indexes) or 1) * config.num_nodes
