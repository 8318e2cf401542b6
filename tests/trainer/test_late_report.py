"""The late report turns the sums of a step into means."""

import pytest
import torch

from modules.trainer.LateReport import LateReport, Names
from modules.trainer.Step import Step


def figures(metrics):
    names = Names(("stop",), tuple(metrics))
    totals = torch.tensor([6.0, 4.0, 0.0, *metrics.values()], dtype=torch.float64)
    return LateReport(Step([]), 1, 0.1, {}, totals, torch.tensor(1.0), names).read()


def test_a_metric_is_divided_by_the_samples_of_the_step():
    step = figures({"kl": 2.0})
    assert step.loss == 1.5
    assert step.metrics == {"kl": 0.5}


def test_a_metric_with_a_count_of_its_own_is_divided_by_that():
    step = figures({"loss_t0": 6.0, "loss_t0/count": 3.0, "loss_t1": 0.0, "loss_t1/count": 0.0})
    assert step.metrics == pytest.approx({"loss_t0": 2.0})  # no sample has the second
