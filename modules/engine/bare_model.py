"""Takes a model out of what programs wrap models in: the engine wraps it itself, and saves it by its own names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from modules.config.errors import UserError


def bare_model(model: nn.Module) -> nn.Module:
    """`model` without DistributedDataParallel, DataParallel or `torch.compile` around it; it stays compiled.

    Raises UserError if it is sharded already.
    """
    compiled_by: Any = None
    while True:
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
        elif (inner := getattr(model, "_orig_mod", None)) is not None:
            compiled_by = model.dynamo_ctx
            model = inner
        else:
            break
    if type(model).__name__ == "FullyShardedDataParallel" or any(_is_sharded(param) for param in model.parameters()):
        raise UserError("model: it is sharded already, which the engine can't take over; pass the model itself.")
    if compiled_by is not None:
        # in place, as nn.Module.compile does it: the names of parameters stay those of the model
        model._compiled_call_impl = compiled_by(_call_of(model))
    return model


def _call_of(model: nn.Module) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:  # a frame of ours: torch compiles none of its own, such as Sequential's
        return model._call_impl(*args, **kwargs)

    return call


def _is_sharded(param: nn.Parameter) -> bool:
    return type(param.data).__name__ == "DTensor"  # whose module takes long to import
