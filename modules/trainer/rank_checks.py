"""Checks that all ranks of a run have the same settings, data and weights, although each reads its own files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from modules.config.atomic_file import remove, temporary_beside
from modules.config.errors import ConfigError
from modules.config.shared_settings import shared_values
from modules.distributed.placeholders import reader_of
from modules.trainer.TrainingError import TrainingError
from modules.weights.checksum import checksum

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.distributed.Runtime import Runtime
    from modules.weights.BaseModel import BaseModel


def check_same(runtime: Runtime, step: int, what: str, digest: Callable[[], str], where: str) -> None:
    """Raises TrainingError, on all ranks, if the `digest` of any rank differs from that of rank 0.

    what, where: what is compared, and what to check on the machine of that rank, for the message.
    """
    if runtime.world_size == 1:
        return
    digests = runtime.gather(digest(), f"comparing {what}")
    others = [rank for rank, other in enumerate(digests) if other != digests[0]]
    if others:
        raise TrainingError(
            f"The {what} of rank {others[0]} differ from those of rank 0 (step {step}): check {where} on its machine."
        )


def is_shared(runtime: Runtime, folder: Path) -> bool:
    """Whether the folder, which exists on rank 0, is the same on all ranks."""
    path = temporary_beside(folder / "shared")
    if runtime.is_main:
        path.touch()
    try:
        path = path.with_name(runtime.broadcast(path.name, "looking at the run folder"))
        return all(runtime.gather(path.exists(), "looking at the run folder"))
    finally:
        if runtime.is_main:
            remove(path)


def check_shared_folder(config: TrainConfig, runtime: Runtime, folder: Path) -> None:
    """Raises ConfigError, on all ranks, if their backups can't be written into the run folder, but must be."""
    divides = config.ddp_shard_optimizer and runtime.world_size > 1 and not runtime.shards
    if divides and not is_shared(runtime, folder):
        raise ConfigError.at(
            "ddp_shard_optimizer",
            ": each GPU writes its part of the optimizer's state into the backups, but the machines "
            f"don't share the folder {folder}; choose a workspace_dir on a shared disk, or turn it off.",
        )


def settings_digest(config: TrainConfig) -> str:
    """A digest of the settings that must be the same on all machines."""
    return hashlib.sha256(json.dumps(shared_values(config), sort_keys=True).encode()).hexdigest()


def weights_digest(base: BaseModel, runtime: Runtime) -> str:
    """A digest of all weights in memory that every rank holds in full, and of those that are still in their files."""
    modules = {name: part for name, part in base.pipe.components.items() if isinstance(part, torch.nn.Module)}
    states = {name: part.state_dict(keep_vars=True) for name, part in modules.items()}
    tensors = {f"{name}.{key}": value for name, state in states.items() for key, value in state.items()}
    readers = {name: reader for name, value in tensors.items() if (reader := reader_of(value))}
    loaded = {name: value for name, value in tensors.items() if name not in readers}
    stored = [checksum({name: reader(0, len(tensors[name]))}) for name, reader in readers.items()]
    return "".join([checksum(runtime.replicated(loaded)), *stored])
