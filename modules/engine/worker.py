"""A ready-made training function for ranks, configured with factories for model, optimizer and criterion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, IterableDataset

from modules.engine.History import History
from modules.engine.Task import Criterion
from modules.engine.TrainingEngine import TrainingEngine


def distributed_train_worker(
    rank: int,
    world_size: int,
    *,
    model_fn: Callable[[], nn.Module],
    train_dataset: Dataset,
    val_dataset: Dataset | None = None,
    batch_size: int = 32,
    num_workers: int = 0,
    optimizer_fn: Callable[[Iterable[nn.Parameter]], Optimizer],
    criterion_fn: Callable[[], Criterion] | None = None,
    scheduler_fn: Callable[[Optimizer], LRScheduler] | None = None,
    engine_kwargs: Mapping[str, Any] | None = None,
    train_kwargs: Mapping[str, Any] | None = None,
) -> History:
    """Trains as `rank` of `world_size` and returns the history, which is the same on every rank.

    What `launch_distributed_training` calls if it is given no function.

    model_fn(): returns the model. Before, torch is seeded with the engine's seed.
    train_dataset, val_dataset: the whole datasets, on every rank.
    batch_size: per rank.
    num_workers: data loading processes per rank.
    optimizer_fn(parameters): returns the optimizer.
    criterion_fn(): returns the criterion; not needed with a step_fn in train_kwargs.
    scheduler_fn(optimizer): returns the scheduler.
    engine_kwargs: further arguments of TrainingEngine.
    train_kwargs: further arguments of TrainingEngine.train, such as num_epochs.
    """
    engine_kwargs, is_distributed = dict(engine_kwargs or {}), world_size > 1
    if is_distributed:
        TrainingEngine.setup_distributed(rank, world_size)
    torch.manual_seed(engine_kwargs.get("seed", 42))
    engine = TrainingEngine(model_fn(), distributed=is_distributed, world_size=world_size, **engine_kwargs)
    loading: dict[str, Any] = {
        "batch_size": batch_size,
        "num_workers": num_workers,
        "persistent_workers": num_workers > 0,
        "pin_memory": engine.device.type == "cuda",
    }
    optimizer = optimizer_fn(engine.model.parameters())
    return engine.train(
        DataLoader(train_dataset, shuffle=not isinstance(train_dataset, IterableDataset), **loading),
        None if val_dataset is None else DataLoader(val_dataset, **loading),
        optimizer=optimizer,
        criterion=criterion_fn() if criterion_fn else None,
        scheduler=scheduler_fn(optimizer) if scheduler_fn else None,
        **(train_kwargs or {}),
    )
