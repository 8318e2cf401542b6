"""How TrainingEngine becomes one of several ranks, and on which device and in which precision it trains."""

from __future__ import annotations

import os
from typing import Literal

import torch

from modules.config.errors import UserError
from modules.config.ModelConfig import ModelConfig
from modules.config.TrainConfig import TrainConfig
from modules.distributed.Runtime import Runtime, default_device
from modules.distributed.setup_distributed import create_runtime, setup_distributed
from modules.distributed.usable_gpus import supports_bf16, usable_device
from modules.engine.arguments import Backend, check_backend
from modules.engine.RankContext import rank_context
from modules.engine.Sharding import Sharding

DEFAULT_PORT = "12355"
ADDRESS = "MASTER_ADDR and MASTER_PORT"
Precision = Literal["no", "bf16", "fp16"]  # as TrainingLoop names it
PRECISIONS: dict[torch.dtype | None, Precision] = {
    None: "no",
    torch.float32: "no",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
}


def join_ranks(rank: int, world_size: int, backend: Backend | None) -> None:
    """See `TrainingEngine.setup_distributed`."""
    check_backend(backend)
    for name, value in {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": DEFAULT_PORT,
    }.items():
        os.environ.setdefault(name, str(value))
    with rank_context().heartbeat.phase("joining"):
        _, joined_rank, joined_size = setup_distributed(_settings(backend), tell=None, address_settings=ADDRESS)
    if (joined_rank, joined_size) != (rank, world_size):
        raise UserError(
            f"setup_distributed({rank}, {world_size}): the launcher has started this process as rank {joined_rank} "
            f"of {joined_size}; pass what RANK and WORLD_SIZE say."
        )


def make_runtime(
    device: torch.device | str | None,
    distributed: bool,
    local_rank: int,
    world_size: int,
    backend: Backend | None,
    sync_batchnorm: bool,
    sharding: Sharding,
) -> Runtime:
    """The Runtime for the arguments of TrainingEngine. If `distributed`, the ranks join unless they have joined."""
    check_backend(backend)
    wanted = None if device is None else usable_device(device)
    heartbeat = rank_context().heartbeat
    if not distributed:
        if world_size > 1:
            raise UserError(f"TrainingEngine(world_size={world_size}): several ranks need distributed=True.")
        return Runtime(wanted or default_device(), heartbeat)
    config = _settings(backend, sharding=sharding)
    with heartbeat.phase("joining"):
        joined_local, _, joined_size = setup_distributed(config, tell=None, address_settings=ADDRESS)
    if (world_size > 1 and joined_size != world_size) or (local_rank > 0 and joined_local != local_rank):
        raise UserError(
            f"TrainingEngine(local_rank={local_rank}, world_size={world_size}): this process is local rank "
            f"{joined_local} of {joined_size} ranks; call TrainingEngine.setup_distributed first, or start the program "
            "with torchrun."
        )
    sharding.check_backend()
    runtime = create_runtime(config, heartbeat, sync_batch_norm=sync_batchnorm)
    sharding.check_ranks(runtime)
    if wanted is not None and wanted.type != runtime.device.type:
        raise UserError(f"device {str(device)!r}: the ranks have joined with {runtime.device}; omit device.")
    return runtime


def introduce_ranks(backend: Backend | None, precision: Precision) -> None:
    """Prints who trains, and how, once the precision is known. The ranks have joined already."""
    setup_distributed(_settings(backend, precision))


def precision_name(use_amp: bool, dtype: torch.dtype | None, device: torch.device) -> Precision:
    """The precision to train with. dtype: None chooses one for the device."""
    if not use_amp:
        return "no"
    if dtype not in PRECISIONS:
        raise UserError(f"amp_dtype {dtype}: use torch.bfloat16 or torch.float16.")
    if dtype is None:
        dtype = torch.bfloat16 if supports_bf16(device) else torch.float16
    return PRECISIONS[dtype]


def _settings(backend: Backend | None, precision: Precision = "no", sharding: Sharding | None = None) -> TrainConfig:
    """The settings with which the ranks are joined, and their runtime is made."""
    model = ModelConfig(mixed_precision=precision)
    config = TrainConfig(model=model, enable_multi_gpu=True, distributed_backend=backend or "auto")
    if sharding is not None:
        sharding.configure(config)
    return config
