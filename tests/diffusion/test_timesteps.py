"""Distributions of timesteps: the formulas of their papers, and diffusers' and scipy's own."""

import math

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.cogview4 import pipeline_cogview4
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from diffusers.training_utils import compute_density_for_timestep_sampling
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from modules.config.DiffusionConfig import DiffusionConfig
from modules.config.ResolutionShift import ResolutionShift
from modules.diffusion.timestep_sampling import timestep_distribution
from modules.diffusion.timesteps import (
    TimestepDistribution,
    beta,
    cosmap,
    logit_normal,
    mode,
    resolution_shift,
    shifted,
    sigmoid,
)
from modules.families.registry import FAMILIES

LATENT = (16, 128, 128)  # of a picture of 1024 x 1024 pixels: 4096 tokens
GRID = (np.arange(20000) + 0.5) / 20000
SD3_SCHEDULER = {"shift": 3.0, "num_train_timesteps": 1000}


def sampled(inverse_cdf):
    return np.array([inverse_cdf(u) for u in GRID])


def empirical_cdf(values, places):
    return np.searchsorted(np.sort(values), places) / len(values)


def test_by_default_the_draw_is_the_place_bit_for_bit():
    draws = np.random.default_rng(0).random(1000).tolist()
    assert [TimestepDistribution().at(u, LATENT) for u in draws] == draws


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (-0.5, 1.4), (1.0, 0.3)])
def test_the_logit_of_the_logit_normal_is_normal(mean, std):
    t = sampled(logit_normal(mean, std))
    x = np.log(t / (1 - t))
    assert stats.kstest(x, "norm", args=(mean, std)).statistic < 1e-4


def test_the_logit_normal_is_that_of_diffusers():
    torch.manual_seed(0)
    theirs = compute_density_for_timestep_sampling("logit_normal", 50000, logit_mean=0.3, logit_std=0.8).numpy()
    assert stats.ks_2samp(sampled(logit_normal(0.3, 0.8)), theirs).statistic < 0.01


@pytest.mark.parametrize(("slope", "centre"), [(8.0, 0.5), (-8.0, 0.3), (50.0, 1.0), (-50.0, 0.0), (0.001, 0.5)])
def test_the_density_of_the_sigmoid_is_a_sigmoid(slope, centre):
    places = np.linspace(0, 1, 2001)
    density = 1 / (1 + np.exp(-slope * (places - centre)))
    areas = (density[1:] + density[:-1]) / 2
    cdf = np.concatenate([[0.0], np.cumsum(areas) / areas.sum()])
    np.testing.assert_allclose(empirical_cdf(sampled(sigmoid(slope, centre)), places), cdf, atol=2e-4)


def test_a_sigmoid_without_slope_is_uniform():
    assert sigmoid(0.0, 0.5)(0.25) == 0.25


@pytest.mark.parametrize(("a", "b"), [(2.0, 2.0), (0.5, 3.0), (1.0, 1.0)])
def test_the_beta_distribution_is_that_of_scipy(a, b):
    np.testing.assert_allclose(sampled(beta(a, b))[::100], stats.beta(a, b).ppf(GRID[::100]), rtol=1e-9)


@pytest.mark.parametrize("scale", [-1.0, 0.0, 1.29, 1.75])
def test_mode_sampling_is_that_of_diffusers(scale):
    torch.manual_seed(0)
    theirs = compute_density_for_timestep_sampling("mode", 50000, mode_scale=scale).numpy()
    assert stats.ks_2samp(sampled(mode(scale)), theirs).statistic < 0.01


def test_cosmap_has_the_density_of_its_paper():
    cdf = (2 / math.pi) * np.arctan(GRID / (1 - GRID))  # the integral of 2 / (pi (1 - 2 t + 2 t^2))
    np.testing.assert_allclose([cosmap(u) for u in cdf[::100]], GRID[::100], rtol=1e-9)


@pytest.mark.parametrize(
    "inverse_cdf",
    [
        logit_normal(0, 1),
        logit_normal(10, 10),
        logit_normal(-10, 10),
        sigmoid(50, 1),
        sigmoid(-50, 0),
        beta(0.01, 100),
        mode(-1.0),
        mode(1.75),
        cosmap,
    ],
)
def test_the_ends_of_the_draws_stay_in_range_and_in_order(inverse_cdf):
    draws = [0.0, 2.0**-53, 1e-6, 0.3, 0.7, 1 - 1e-6, 1 - 2.0**-53]
    places = [inverse_cdf(u) for u in draws]
    assert all(0 <= place <= 1 for place in places)
    assert places == sorted(places)


# --- shift and range --------------------------------------------------------------------------------------------------


@given(st.floats(0, 1), st.floats(0.01, 100))
def test_a_shift_multiplies_the_ratio_of_noise_to_data(t, shift):
    place = shifted(t, shift)
    assert 0 <= place <= 1
    assert place * (1 - t) == pytest.approx(shift * t * (1 - place), abs=1e-9)


def test_a_fixed_shift_is_that_of_diffusers_scheduler():
    sigmas = FlowMatchEulerDiscreteScheduler(shift=3.0).sigmas.double().numpy()
    ours = [shifted(t, 3.0) for t in np.linspace(1, 1 / 1000, 1000)]
    np.testing.assert_allclose(ours, sigmas[:1000], rtol=1e-6)


@pytest.mark.parametrize("tokens", [1, 256, 1024, 4096, 9216])
def test_the_shift_by_resolution_is_that_of_diffusers_flux(tokens):
    mu = calculate_shift(tokens)
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    t = torch.tensor([0.01, 0.3, 0.99], dtype=torch.float64)
    ours = [shifted(value, resolution_shift(tokens, ResolutionShift())) for value in t.tolist()]
    np.testing.assert_allclose(ours, scheduler.time_shift(mu, 1.0, t).numpy(), rtol=1e-12)


@pytest.mark.parametrize("tokens", [256, 4096, 9216])
def test_the_shift_by_the_root_of_the_resolution_is_that_of_diffusers_cogview4(tokens):
    base = ResolutionShift(base_shift=0.25, max_shift=0.75, law="root")
    shift = pipeline_cogview4.calculate_shift(tokens, base_shift=base.base_shift, max_shift=base.max_shift)
    assert resolution_shift(tokens, base) == pytest.approx(shift, rel=1e-12)
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, time_shift_type="linear")
    t = torch.tensor([0.01, 0.3, 0.99], dtype=torch.float64)
    ours = [shifted(value, shift) for value in t.tolist()]
    np.testing.assert_allclose(ours, scheduler.time_shift(shift, 1.0, t).numpy(), rtol=1e-12)


@pytest.mark.parametrize("kind", ["linear", "exponential"])
def test_the_shift_by_the_side_of_an_image_is_that_of_diffusers_qwen_image_layered(kind):
    """Its pipeline counts the tokens of the image alone: 40 x 40 of 640 x 640 pixels, whose root is 2.5 times 16."""
    scheduler = {"use_dynamic_shifting": True, "time_shift_type": kind, "base_shift": 0.9, "max_image_seq_len": 8192}
    ours = timestep_distribution(
        FAMILIES["qwen_image_layered"], scheduler, DiffusionConfig(timesteps="uniform", shift_by="resolution")
    )
    t = torch.tensor([0.01, 0.3, 0.99], dtype=torch.float64)
    expected = FlowMatchEulerDiscreteScheduler(**scheduler).time_shift(2.5, 1.0, t).numpy()
    found = [ours.at(value, (16, 5, 80, 80)) for value in t.tolist()]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_no_picture_has_less_than_a_token():
    with pytest.raises(ValueError, match="0 tokens"):
        resolution_shift(0, ResolutionShift())


def test_the_shift_of_a_picture_counts_its_patches():
    timesteps = TimestepDistribution(shift=ResolutionShift())
    assert timesteps.at(0.5, LATENT) == shifted(0.5, math.exp(1.15))
    assert timesteps.at(0.5, (16, 32, 32)) == shifted(0.5, math.exp(0.5))


def test_timesteps_stay_in_the_range_asked_for():
    timesteps = TimestepDistribution(logit_normal(0, 1), 3.0, low=0.2, high=0.6)
    places = [timesteps.at(u, LATENT) for u in (0.0, 0.25, 0.5, 0.75, 1 - 2.0**-53)]
    assert all(0.2 <= place <= 0.6 for place in places)
    assert places[2] == pytest.approx(0.2 + 0.4 * 0.75)


# --- from the settings ------------------------------------------------------------------------------------------------


def place(settings, family="sd3", scheduler=SD3_SCHEDULER, u=0.3):
    return timestep_distribution(FAMILIES[family], scheduler, DiffusionConfig(**settings)).at(u, LATENT)


def test_without_numbers_of_its_makers_a_family_trains_with_the_sampling_shift_bit_for_bit():
    draws = np.random.default_rng(0).random(20).tolist()
    dynamic = {"use_dynamic_shifting": True, "max_shift": 1.5}
    for name, family in FAMILIES.items():
        for scheduler in ({"shift": 4.5}, dynamic):
            found = [[place({"timesteps": kind}, name, scheduler, u) for u in draws] for kind in ("trained", "family")]
            assert (found[0] == found[1]) == (family.training_timesteps is None), name
    assert [place({}, "sd15", u=u) for u in draws] == draws


def test_the_sampling_shift_is_that_of_the_scheduler():
    normal = logit_normal(0, 1)(0.3)
    assert place({"timesteps": "family"}) == shifted(normal, 3.0)
    dynamic = {"use_dynamic_shifting": True, "max_shift": 1.5}
    assert place({"timesteps": "family"}, scheduler=dynamic) == shifted(normal, math.exp(1.5))
    root = {"use_dynamic_shifting": True, "base_shift": 0.25, "max_shift": 0.75}
    assert place({"timesteps": "family"}, "cogview4", root) == shifted(normal, 0.25 + 0.75 * 4)
    assert place({"timesteps": "family"}, "sd15") == 0.3
    assert place({"timesteps": "family", "shift_by": "factor", "shift": 9.0}, "sd15") == 0.3


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"timesteps": "logit_normal", "logit_normal_mean": 0.5, "logit_normal_std": 2.0}, logit_normal(0.5, 2.0)(0.3)),
        ({"timesteps": "sigmoid", "sigmoid_slope": 4.0, "sigmoid_centre": 0.2}, sigmoid(4.0, 0.2)(0.3)),
        ({"timesteps": "beta", "beta_alpha": 3.0, "beta_beta": 0.5}, beta(3.0, 0.5)(0.3)),
        ({"timesteps": "mode", "mode_scale": -0.5}, mode(-0.5)(0.3)),
        ({"timesteps": "cosmap"}, cosmap(0.3)),
        ({"timesteps": "uniform"}, 0.3),
        ({"timesteps": "uniform", "shift_by": "factor", "shift": 2.0}, shifted(0.3, 2.0)),
        ({"timesteps": "uniform", "shift_by": "resolution"}, shifted(0.3, math.exp(1.15))),
        ({"timesteps": "uniform", "min_timestep": 200, "max_timestep": 700}, 0.2 + 0.5 * 0.3),
    ],
)
def test_every_setting_reaches_the_timesteps(settings, expected):
    for name, family in FAMILIES.items():
        usual = family.patch_size == 2 and family.shift_law == "exponential"  # tokens of 2 x 2 cells
        if usual or settings.get("shift_by") != "resolution":
            assert place(settings, name) == pytest.approx(expected, rel=1e-12)
