"""The training loop; and, for those who train models of their own, TrainingEngine and how to launch it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modules.engine.launch import launch_distributed_training
    from modules.engine.TrainingEngine import TrainingEngine
    from modules.engine.worker import distributed_train_worker

__all__ = ["TrainingEngine", "distributed_train_worker", "launch_distributed_training"]

# Found when they are asked for: they are built from this room's modules, which must not import them, and need torch.
_PUBLIC = {
    "TrainingEngine": "modules.engine.TrainingEngine",
    "distributed_train_worker": "modules.engine.worker",
    "launch_distributed_training": "modules.engine.launch",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
