"""What is shown beside the loss."""

import pytest
import torch

from modules.diffusion.metrics import agreement, loss_by_quarter


def test_each_quarter_of_the_timesteps_has_its_own_sum_and_count():
    losses = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0], requires_grad=True)
    shown = loss_by_quarter(losses, torch.tensor([0.0, 0.2499, 0.25, 0.9, 1.0]), real=1.0)
    assert [shown[f"loss_t{part}"].item() for part in range(4)] == [3.0, 4.0, 0.0, 24.0]
    assert [shown[f"loss_t{part}/count"].item() for part in range(4)] == [2, 1, 0, 2]
    assert not any(value.requires_grad for value in shown.values())


def test_samples_that_do_not_count_are_not_shown():
    shown = loss_by_quarter(torch.tensor([1.0]), torch.tensor([0.5]), real=0.0)
    assert all(value == 0 for value in shown.values())


def test_agreement_is_the_angle_and_the_lengths():
    prediction = torch.tensor([[3.0, 4.0], [1.0, 0.0]]).view(2, 1, 1, 2)
    target = torch.tensor([[6.0, 8.0], [0.0, 2.0]]).view(2, 1, 1, 2)
    shown = {name: value.item() for name, value in agreement(prediction, target).items()}
    assert shown == pytest.approx({"cosine": 1.0, "prediction_norm": 6.0, "target_norm": 12.0})


def test_a_loss_that_is_not_finite_is_shown_in_its_own_quarter_alone():
    losses = torch.tensor([float("nan"), 2.0, float("inf")])
    shown = loss_by_quarter(losses, torch.tensor([0.1, 0.4, 0.9]), real=1.0)
    assert shown["loss_t0"].isnan()
    assert [shown["loss_t1"].item(), shown["loss_t2"].item()] == [2.0, 0.0]
    assert all(value == 0 for value in loss_by_quarter(losses, torch.tensor([0.1, 0.4, 0.9]), real=0.0).values())
