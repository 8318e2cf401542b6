"""Weights of timesteps against the formulas of their papers and against diffusers."""

import pytest
import torch
from diffusers.training_utils import compute_loss_weighting_for_sd3

from modules.diffusion.loss_weights import cosmap, debiased_estimation, debiased_of_v, min_snr_gamma, p2, sigma_sqrt

SNR = torch.tensor([1e-3, 0.5, 4.9, 5.0, 5.1, 1e4])
SIGMA = torch.tensor([0.001, 0.25, 0.5, 0.9, 1.0])


def test_min_snr_gamma_limits_the_weight_of_little_noise():
    expected = [min(snr, 5.0) / snr for snr in SNR.tolist()]
    assert min_snr_gamma(SNR, 5.0, "epsilon").tolist() == pytest.approx(expected)


def test_min_snr_gamma_of_v_divides_by_one_more():
    expected = [min(snr, 5.0) / (snr + 1) for snr in SNR.tolist()]
    assert min_snr_gamma(SNR, 5.0, "v_prediction").tolist() == pytest.approx(expected)
    assert min_snr_gamma(torch.zeros(1), 5.0, "v_prediction").item() == 0


def test_debiased_estimation_weighs_by_the_root_of_the_noise_to_signal_ratio():
    assert debiased_estimation(SNR, "epsilon").tolist() == pytest.approx([snr**-0.5 for snr in SNR.tolist()])


def test_p2_weighs_little_noise_less():
    assert p2(SNR, 0.5, "epsilon").tolist() == pytest.approx([(1 + snr) ** -0.5 for snr in SNR.tolist()])


def test_debiased_estimation_of_v_by_other_programs():
    assert debiased_of_v(SNR, "onetrainer").tolist() == pytest.approx([(snr + 1) ** -0.5 for snr in SNR.tolist()])
    assert debiased_of_v(SNR, "kohya").tolist() == pytest.approx([1 / (snr + 1) for snr in SNR.tolist()])


@pytest.mark.parametrize(
    "weight",
    [
        debiased_estimation,
        lambda snr, kind: min_snr_gamma(snr, 5.0, kind),
        lambda snr, kind: p2(snr, 0.5, kind),
    ],
)
def test_epsilon_and_v_weigh_the_same_mistake_alike(weight):
    # x0 from epsilon is (x - sqrt(1 - a) epsilon) / sqrt(a), from v sqrt(a) x - sqrt(1 - a) v
    alpha = SNR / (SNR + 1)
    mistake_of_x0 = 0.1
    squared_epsilon = mistake_of_x0**2 * alpha / (1 - alpha)
    squared_v = mistake_of_x0**2 / (1 - alpha)
    torch.testing.assert_close(weight(SNR, "epsilon") * squared_epsilon, weight(SNR, "v_prediction") * squared_v)


@pytest.mark.parametrize(("ours", "name"), [(sigma_sqrt, "sigma_sqrt"), (cosmap, "cosmap")])
def test_the_weights_of_flow_are_those_of_diffusers(ours, name):
    torch.testing.assert_close(ours(SIGMA), compute_loss_weighting_for_sd3(name, SIGMA))


def test_almost_no_noise_has_a_bounded_weight():
    assert sigma_sqrt(torch.tensor([0.0, 1e-9])).tolist() == pytest.approx([1e6, 1e6])
