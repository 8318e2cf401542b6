"""Errors of predictions against their formulas."""

import math

import pytest
import torch

from modules.diffusion.losses import LossMix, huber_delta, log_cosh, masked_mean, pseudo_huber

PREDICTION = torch.tensor([[0.0, 0.5], [2.0, -3.0]]).view(2, 1, 1, 2)
TARGET = torch.zeros(2, 1, 1, 2)
DELTA = torch.tensor([0.1, 0.5])


def test_by_default_the_error_is_squared_bit_for_bit():
    generator = torch.Generator().manual_seed(0)
    prediction, target = (torch.randn(3, 4, 8, 8, generator=generator) for _ in range(2))
    assert torch.equal(LossMix().error(prediction, target), (prediction - target).square())


def test_the_shares_add():
    difference = PREDICTION - TARGET
    huber = pseudo_huber(difference, DELTA.view(2, 1, 1, 1))
    expected = 0.5 * difference**2 + 0.25 * difference.abs() + 2.0 * huber
    expected += 0.75 * huber / DELTA.view(2, 1, 1, 1) + 0.5 * log_cosh(difference)
    torch.testing.assert_close(LossMix(0.5, 0.25, 2.0, 0.75, 0.5).error(PREDICTION, TARGET, DELTA), expected)
    torch.testing.assert_close(LossMix(0.0, 1.0).error(PREDICTION, TARGET), difference.abs())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_the_error_is_computed_in_float32_at_least(given, expected):
    prediction, target = torch.zeros(1, 4096, dtype=given), torch.full((1, 4096), 300.0)
    error = LossMix().error(prediction, target).mean()
    assert error.dtype == expected
    assert error.item() == 90000.0  # beyond what float16 can hold


def test_huber_is_squared_near_zero_and_absolute_far_away():
    delta = torch.tensor(0.1)
    small, large = torch.tensor(1e-3), torch.tensor(1e3)
    assert pseudo_huber(small, delta).item() == pytest.approx(small.item() ** 2, rel=1e-2)
    assert pseudo_huber(large, delta).item() == pytest.approx(2 * 0.1 * 1e3, rel=1e-3)
    assert pseudo_huber(torch.tensor(0.3), delta).item() == pytest.approx(0.2 * (math.sqrt(0.09 + 0.01) - 0.1))


def test_log_cosh_is_its_formula_and_stays_finite():
    difference = torch.tensor([-3.0, -0.5, 0.0, 0.5, 3.0])
    expected = [math.log(math.cosh(value)) for value in difference.tolist()]
    assert log_cosh(difference).tolist() == pytest.approx(expected, abs=1e-6)
    assert log_cosh(torch.tensor(-1e3)).item() == pytest.approx(1e3 - math.log(2))


def test_the_threshold_of_huber_follows_its_schedule():
    # as diffusers' train_text_to_image scripts of scheduled Huber compute them from timesteps and alphas
    t = torch.tensor([0.0, 0.25, 0.999])
    snr = torch.tensor([100.0, 1.0, 0.01])
    assert huber_delta("constant", 0.1, t, snr).tolist() == pytest.approx([0.1] * 3)
    alpha = -math.log(0.1) / 1000
    exponential = [math.exp(-alpha * 1000 * value) for value in t.tolist()]
    assert huber_delta("exponential", 0.1, t, snr).tolist() == pytest.approx(exponential)
    by_snr = [(1 - 0.1) / (1 + ratio**-0.5) ** 2 + 0.1 for ratio in snr.tolist()]
    assert huber_delta("snr", 0.1, t, snr).tolist() == pytest.approx(by_snr)
    assert huber_delta("snr", 0.1, torch.ones(1), torch.zeros(1)).item() == pytest.approx(0.1)


def masks(*rows):
    return torch.tensor(rows).view(len(rows), 1, 2, 2)


def test_outside_the_mask_the_error_counts_as_little_as_asked():
    error = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).expand(1, 3, 2, 2)
    mask = masks([1.0, 0.0, 0.0, 0.5])
    assert masked_mean(error, mask, 0.0, False).item() == pytest.approx((1 + 2) / 4)
    assert masked_mean(error, mask, 0.2, False).item() == pytest.approx((1 + 0.4 + 0.6 + 0.6 * 4) / 4)
    assert masked_mean(error, mask, 1.0, False).item() == pytest.approx(error.mean().item())


def test_by_area_a_small_mask_counts_as_much_as_a_large_one():
    error = torch.full((2, 3, 2, 2), 7.0)
    mask = masks([1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0])
    assert masked_mean(error, mask, 0.0, True).tolist() == pytest.approx([7.0, 7.0])
    assert masked_mean(error, mask, 0.0, False).tolist() == pytest.approx([7 / 4, 21 / 4])


def test_a_mask_without_white_makes_no_loss():
    assert masked_mean(torch.ones(1, 4, 2, 2), masks([0.0] * 4), 0.0, True).item() == 0
