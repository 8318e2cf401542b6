"""What the ranks of a run must have alike, each on a machine and with files of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from modules.config.shared_settings import shared_values
from modules.trainer.TrainingError import TrainingError
from modules.weights.checksum import checksum

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.distributed.Runtime import Runtime
    from modules.weights.BaseModel import BaseModel


def check_same(runtime: Runtime, step: int, what: str, digest: Callable[[], str], where: str) -> None:
    """Raises TrainingError, on all ranks, where the `digest` of one differs from that of rank 0.

    where: what to look at on that rank's machine.
    """
    if runtime.world_size == 1:
        return
    digests = runtime.gather(digest(), f"comparing {what}")
    others = [rank for rank, other in enumerate(digests) if other != digests[0]]
    if others:
        raise TrainingError(
            f"Rank {others[0]} has other {what} than rank 0 (step {step}): look at {where} on its machine."
        )


def settings_digest(config: TrainConfig) -> str:
    """Of what all machines have to be told alike."""
    return hashlib.sha256(json.dumps(shared_values(config), sort_keys=True).encode()).hexdigest()


def weights_digest(base: BaseModel, runtime: Runtime) -> str:
    """Of everything in memory that a step computes with, as far as all ranks hold the same."""
    modules = {name: part for name, part in base.pipe.components.items() if isinstance(part, torch.nn.Module)}
    tensors = {f"{name}.{key}": v for name, part in modules.items() for key, v in part.state_dict().items()}
    return checksum(runtime.replicated(tensors))
