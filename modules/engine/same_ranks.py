"""Checks that the ranks of a TrainingEngine run the same program, and train the same model."""

from __future__ import annotations

import torch
from torch import nn

from modules.config.errors import UserError
from modules.distributed.Runtime import Runtime
from modules.weights.checksum import checksum


def check_same_program(runtime: Runtime, experiment_name: str, seed: int, model: nn.Module) -> None:
    """Raises UserError, on all ranks, if another program has joined at the same port. All ranks must call it."""
    own = {"experiment_name": experiment_name, "seed": seed, "model": _described(model)}
    ranks = runtime.gather(own, "comparing programs")
    for rank, other in enumerate(ranks):
        for name, value in other.items():
            if value != ranks[0][name]:
                raise UserError(
                    f"Rank {rank} has {name} {value!r}, but rank 0 has {ranks[0][name]!r}: if two programs have met, "
                    "give one of them another MASTER_PORT; otherwise pass the same on every rank."
                )


def check_same_weights(runtime: Runtime, model: nn.Module) -> None:
    """Raises UserError, on all ranks, if they no longer train the same weights. All ranks must call it.

    It waits for the device once.
    """
    if runtime.world_size == 1:
        return
    trained: dict[str, torch.Tensor] = {name: param for name, param in model.named_parameters() if param.requires_grad}
    tensors = {
        name: torch.view_as_real(param.detach()) if param.is_complex() else param
        for name, param in runtime.replicated(trained).items()
    }
    if len(set(runtime.gather(checksum(tensors), "comparing weights"))) > 1:
        raise UserError(
            "step_fn: the ranks' weights differ after the first steps, because gradients were not averaged over them. "
            "Call the model that step_fn is given, not the module itself, and leave backward() and the optimizer to "
            "the engine."
        )


def _described(model: nn.Module) -> str:
    return f"{type(model).__name__} with {sum(param.numel() for param in model.parameters())} parameters"
