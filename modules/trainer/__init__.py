"""The training loop. Also re-exports what a program of your own needs to train its model (docs/api.md)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from modules.config.installation import PACKAGE

if TYPE_CHECKING:
    from modules.config.errors import UserError
    from modules.engine.EarlyStopping import EarlyStopping
    from modules.engine.History import History
    from modules.engine.launch import launch_distributed_training
    from modules.engine.multi_node_commands import multi_node_commands
    from modules.engine.Profiler import Profiler
    from modules.engine.TrainingEngine import TrainingEngine
    from modules.engine.worker import distributed_train_worker
    from modules.loggers.CsvLogger import CsvLogger
    from modules.loggers.MlflowLogger import MlflowLogger
    from modules.loggers.WandbLogger import WandbLogger
    from modules.session.StepInfo import StepInfo
    from modules.session.TrainCallbacks import TrainCallbacks

__all__ = [
    "CsvLogger",
    "EarlyStopping",
    "History",
    "MlflowLogger",
    "Profiler",
    "StepInfo",
    "TrainCallbacks",
    "TrainingEngine",
    "UserError",
    "WandbLogger",
    "distributed_train_worker",
    "launch_distributed_training",
    "multi_node_commands",
]

# Imported lazily: some import torch, and modules of this package, which must not import them back.
_PUBLIC = {
    "CsvLogger": "loggers.CsvLogger",
    "EarlyStopping": "engine.EarlyStopping",
    "History": "engine.History",
    "MlflowLogger": "loggers.MlflowLogger",
    "Profiler": "engine.Profiler",
    "StepInfo": "session.StepInfo",
    "TrainCallbacks": "session.TrainCallbacks",
    "TrainingEngine": "engine.TrainingEngine",
    "UserError": "config.errors",
    "WandbLogger": "loggers.WandbLogger",
    "distributed_train_worker": "engine.worker",
    "launch_distributed_training": "engine.launch",
    "multi_node_commands": "engine.multi_node_commands",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{PACKAGE}.{_PUBLIC[name]}"), name)
