"""Evaluates a model on all samples of a loader, and predicts for them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from modules.config.errors import UserError
from modules.distributed.Runtime import Runtime
from modules.engine.Accumulation import Accumulation
from modules.engine.arguments import check_prediction
from modules.engine.batches import to_device
from modules.engine.loading import step_source
from modules.engine.metrics import MeanFigures, mean_to_sum
from modules.engine.predictions import gather_predictions
from modules.engine.Task import Task
from modules.layers.evaluation_mode import evaluation_mode
from modules.trainer.autocasting import autocast
from modules.trainer.TrainingLoop import TrainingLoop


@torch.no_grad()
def measure(model: nn.Module, loader: Iterable[Any], task: Task, runtime: Runtime, seed: int) -> dict[str, float]:
    """{"loss": mean over all samples, name: value of each metric}, the same on every rank; each sample counts once.

    All ranks must call it. Raises UserError if the loader yields nothing.
    """
    figures = MeanFigures(task.metrics, runtime.device)
    for step in step_source(loader, runtime, Accumulation(), seed).steps(0):
        if step.padding and not runtime.shards:  # where ranks share weights, all must make the same passes
            continue
        runtime.heartbeat.beat()
        ((batch, planned),) = step.counted()
        result = task.run(model, to_device(batch, runtime.device), planned, measures=not step.padding)
        if step.padding:
            continue
        for name, pair in result.sums.items():
            figures.add(name, *pair)
        figures.add("loss", *mean_to_sum(result.loss, result.samples, runtime.device))
    means = figures.means(runtime, "validating")
    if "loss" not in means:
        raise UserError("val_loader yields no batches: there is nothing to evaluate.")
    return means


def inference_mode(
    model: nn.Module, runtime: Runtime, precision: str, loop: TrainingLoop | None = None
) -> AbstractContextManager:
    """Inside, the model has its inference weights, is in evaluation mode and uses the precision of training.

    loop: the one that trains it; its averaged weights are used, if there are any.
    """
    with ExitStack() as stack:
        stack.enter_context(runtime.heartbeat.phase("sampling"))
        stack.enter_context(evaluation_mode(model))
        if loop is not None:
            stack.enter_context(loop.inference_weights())
        stack.enter_context(autocast(runtime.device, precision))
        return stack.pop_all()


@torch.no_grad()
def predict(model: nn.Module, loader: Iterable[Any], runtime: Runtime, seed: int) -> Tensor:
    """The outputs for all samples in the loader's order, on the CPU; the same on every rank. All ranks must call it.

    Raises UserError if the loader yields nothing.
    """
    own: list[Tensor | None] = []
    for step in step_source(loader, runtime, Accumulation(), seed).steps(0):
        batch = to_device(step.batches[0], runtime.device)
        inputs = batch[0] if isinstance(batch, list | tuple) else batch
        outputs = model(inputs)
        check_prediction(outputs)
        own.append(None if step.padding else outputs.cpu())
        runtime.heartbeat.beat()
    ranks = gather_predictions(own, runtime)
    predictions = [part for parts in zip(*ranks, strict=True) for part in parts if part is not None]
    if not predictions:
        raise UserError("loader yields no batches: there is nothing to predict.")
    return torch.cat(predictions)
