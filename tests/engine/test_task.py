"""Loss and metrics of a batch: each figure on the model's device, and nothing that waits for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from modules.engine.Task import Task

METRICS = {
    "a value per sample": lambda output, target: (output - target).abs().mean(1),
    "a pair of tensors": lambda output, target: (output.sum(), torch.ones(len(output), device=output.device)),
    "a tensor and a number": lambda output, target: (output.sum(), len(output)),
    "a tensor of the CPU": lambda output, target: (output.sum(), torch.tensor(len(output))),
}


def step_fn(model, batch):
    loss = mse_loss(model(batch[0]), batch[1])
    return loss, 3, {"tensor": loss.detach(), "number": 0.5, "numpy": np.float32(0.5), "pair": (loss, 2)}


TASKS = {"criterion": Task(mse_loss, metrics=METRICS), "step_fn": Task(step_fn=step_fn)}


@pytest.mark.parametrize("name", TASKS)
def test_everything_is_on_the_device_of_the_model_and_the_host_reads_nothing(name):
    # a tensor without data: to read it raises, and to join it with one of the CPU too
    device = torch.device("meta")
    result = TASKS[name].run(nn.Linear(2, 2, device=device), (torch.zeros(3, 2, device=device),) * 2)
    assert result.loss.is_meta
    assert result.samples == 3
    assert result.sums
    for total, count in result.sums.values():
        assert torch.stack([total, count]).is_meta
        assert total.dtype == count.dtype == torch.float64


def test_each_form_of_a_metric_gives_its_sum_and_count():
    model, inputs = nn.Identity(), torch.tensor([[1.0, 3.0], [5.0, 7.0]])
    sums = TASKS["criterion"].run(model, (inputs, torch.zeros(2, 2))).sums
    assert {name: [part.item() for part in pair] for name, pair in sums.items()} == {
        "a value per sample": [8.0, 2.0],
        "a pair of tensors": [16.0, 2.0],
        "a tensor and a number": [16.0, 2.0],
        "a tensor of the CPU": [16.0, 2.0],
    }
    sums = TASKS["step_fn"].run(model, (inputs, torch.zeros(2, 2))).sums
    assert {name: [part.item() for part in pair] for name, pair in sums.items()} == {
        "tensor": [63.0, 3.0],
        "number": [1.5, 3.0],
        "numpy": [1.5, 3.0],
        "pair": [21.0, 2.0],
    }


def test_metrics_can_be_left_out():
    batch = (torch.zeros(3, 2), torch.zeros(3, 2))
    assert TASKS["criterion"].run(nn.Identity(), batch, measures=False).sums == {}
