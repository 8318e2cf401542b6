"""Estimate the GPU memory of a run from its settings alone, by adding up weights and tensors of the published models.

docs/presets.md explains the rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from modules.config.families import load_families
from modules.config.methods import facts_of
from modules.machine.architectures import load_architectures
from modules.machine.lasting_memory import (
    BYTES_OF,
    autocast_weights,
    gradients_at_once,
    loaded_bytes,
    state_at_once,
    state_bytes,
    trained_weight_bytes,
    trained_weights,
)
from modules.machine.passing_memory import (
    ALLOCATOR,
    activation_bytes,
    caching_bytes,
    frees_as_it_goes,
    sampling_bytes,
    stepping_bytes,
    steps_as_it_goes,
)
from modules.machine.system_memory import LIBRARY_BYTES, most_swapped

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

GIB = 2**30
SYSTEM_BYTES = 9 * GIB // 10
"""Of each GPU, left to its display and other programs: what a preset for a class of memory may not count on."""
_LARGEST_SHARE = 0.95  # of a large GPU, that a preset may count on
_GATHERED = 0.2  # of the denoiser's weights under FSDP: up to two blocks and the gradients of one, see ShardedRuntime
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

    weights, gradients, optimizer, average: held throughout the training. activations: held during forward and backward.
    stepping: held during the optimizer step, when there are no activations. caching: the total while images and
    captions are encoded before the training. sampling: the total while samples are made, 0 without sampling.
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

    @property
    def training(self) -> float:
        lasting = self.weights + self.gradients + self.optimizer + self.average
        return lasting + max(self.activations, self.stepping) + self.process

    @property
    def peak(self) -> float:
        return max(self.training, self.caching, self.sampling)


def estimate_memory(config: TrainConfig, num_ranks: int | None = None) -> MemoryEstimate | None:
    """The estimate; None for a family of unknown size. num_ranks: over all machines; None: as set, or one."""
    model = load_architectures().get(config.family)
    if model is None:
        return None
    ranks = num_ranks or _named_ranks(config)
    trained = trained_weights(config, model)
    is_small = not facts_of(config).trains_weights  # adapters or embeddings are added to the model
    own, trained_bytes = BYTES_OF[config.model.weight_dtype], trained_weight_bytes(config)
    weights = loaded_bytes(config, model) + (trained * trained_bytes if is_small else 0)
    is_mixed = config.model.mixed_precision != "no"
    num_sharing = sharing_ranks(config, ranks)
    if num_sharing > 1:
        weights = weights / num_sharing + _GATHERED * model.denoiser * (2 if is_mixed else own)
    elif is_mixed and own >= 4 and not frees_as_it_goes(config):
        weights += autocast_weights(config, model) * 2
    held = trained / num_sharing  # by one rank
    process = PROCESS_BYTES + (_NCCL_BYTES if ranks > 1 else 0)
    optimizer = held * state_bytes(config, trained_bytes)
    if num_sharing == 1 and config.ddp_shard_optimizer:
        optimizer /= ranks
    if config.optimizer.state_in_ram:
        optimizer = min(optimizer, state_at_once(config, model, trained) * state_bytes(config, trained_bytes))
    average = held * max(4, trained_bytes) if config.ema.enabled else 0
    sampling = sampling_bytes(config, model, ranks)
    if sampling:  # the gradients are freed by then
        sampling += weights + optimizer + average + process
        if config.ema.enabled and config.ema.sample and (trained_bytes < 4 or num_sharing > 1):
            sampling += held * trained_bytes  # the EMA in the weights' precision, or the shards that it replaces
    stepped = gradients_at_once(config, model, held)
    activations = activation_bytes(config, model, ranks) * ALLOCATOR
    stepping = stepping_bytes(config, stepped, held, trained_bytes)
    if steps_as_it_goes(config):
        activations += stepping
    return MemoryEstimate(
        weights=weights,
        gradients=stepped * trained_bytes,
        optimizer=optimizer,
        average=average,
        activations=activations,
        stepping=stepping,
        caching=caching_bytes(config, model) + process,
        sampling=sampling,
        process=process,
    )


def room_for_presets(memory: int) -> float:
    """The bytes that a preset for GPUs with `memory` GB may need."""
    return min(memory * GIB - SYSTEM_BYTES, _LARGEST_SHARE * memory * GIB)


def sharing_ranks(config: TrainConfig, num_ranks: int) -> int:
    """How many of the ranks share one copy of the model; one with the strategy auto, which depends on the GPUs.

    num_ranks: over all machines.
    """
    num_nodes = config.num_nodes if config.enable_multi_gpu else 1
    by_strategy = {"fsdp": num_ranks, "hsdp": config.sharding_group_size or max(1, num_ranks // num_nodes)}
    return by_strategy.get(config.distributed_strategy, 1)


def blocks_to_swap(
    config: TrainConfig,
    available_bytes: float,
    num_ranks: int,
    room: float | None = None,
    base_bytes: int | None = None,
) -> int:
    """The smallest number of swapped blocks with which the run fits in the memory of a GPU; if none does, the largest
    for which there is room.

    num_ranks: over all machines. room: what each rank may keep in system memory; None: unknown. base_bytes: as for
    `kept_in_ram`. A family of unknown size swaps none.
    """
    most = most_swapped(config, num_ranks, room, base_bytes)
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
    typical = load_families()[config.family].typical_bytes
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
    model = load_architectures().get(config.family)
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
