"""The training loop. Also re-exports TrainingEngine and its launchers, for training models of your own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from modules.config.installation import PACKAGE

if TYPE_CHECKING:
    from modules.engine.launch import launch_distributed_training
    from modules.engine.TrainingEngine import TrainingEngine
    from modules.engine.worker import distributed_train_worker

__all__ = ["TrainingEngine", "distributed_train_worker", "launch_distributed_training"]

# Imported lazily: they import torch, and modules of this package, which must not import them back.
_PUBLIC = {
    "TrainingEngine": "TrainingEngine",
    "distributed_train_worker": "worker",
    "launch_distributed_training": "launch",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{PACKAGE}.engine.{_PUBLIC[name]}"), name)
