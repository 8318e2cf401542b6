"""Incompatible settings of noise and loss are refused in one sentence, with a remedy."""

import pytest

from modules.config.ConceptConfig import ConceptConfig
from modules.config.rules.noise_and_loss import SNR_FAMILIES
from modules.config.TrainConfig import TrainConfig
from modules.config.validation import find_problems
from modules.families.registry import FAMILIES


def problems(path, **settings):
    concepts = [ConceptConfig(path="a"), ConceptConfig(path="b", regularisation=True)]
    config = TrainConfig(**{"concepts": concepts, "model": {"base": "a"}, **settings})
    return [(problem.message, problem.blocking) for problem in find_problems(config) if problem.path == path]


def test_the_settings_know_which_families_have_a_signal_to_noise_ratio():
    assert set(SNR_FAMILIES) == {name for name, family in FAMILIES.items() if family.objective == "ddpm"}


@pytest.mark.parametrize(
    ("path", "settings", "message"),
    [
        (
            "diffusion.min_timestep",
            {"diffusion": {"min_timestep": 500, "max_timestep": 500}},
            "diffusion.min_timestep 500: must be below max_timestep (500); lower it or raise the other.",
        ),
        (
            "model.zero_terminal_snr",
            {"model": {"zero_terminal_snr": True}, "family": "sd3"},
            "model.zero_terminal_snr: sd3 is a flow model, which ends in noise alone; turn it off.",
        ),
        (
            "model.zero_terminal_snr",
            {"model": {"zero_terminal_snr": True, "prediction_type": "epsilon"}},
            "model.zero_terminal_snr with prediction_type epsilon: where there is noise alone, epsilon says nothing of "
            "the image; set model.prediction_type to v_prediction.",
        ),
        (
            "loss.mse",
            {"loss": {"mse": 0}},
            "loss.mse, loss.mae, loss.huber, loss.smooth_l1 and loss.log_cosh are all 0: nothing would be learned; set "
            "loss.mse to 1.",
        ),
        (
            "loss.weighting",
            {"loss": {"weighting": "min_snr_gamma"}, "family": "sd3"},
            "loss.weighting min_snr_gamma is not for sd3: use constant or cosmap or sigma or sigma_sqrt.",
        ),
        (
            "loss.weighting",
            {"loss": {"weighting": "cosmap"}, "family": "sdxl"},
            "loss.weighting cosmap is not for sdxl: use constant or debiased or min_snr_gamma or p2.",
        ),
        (
            "loss.prior_by_frozen_model",
            {"loss": {"prior_by_frozen_model": True}, "method": "full"},
            "loss.prior_by_frozen_model with method full: only a LoRA keeps the old model; turn it off.",
        ),
        (
            "loss.masked_prior_preservation_weight",
            {"loss": {"masked_training": True, "masked_prior_preservation_weight": 1}, "method": "full"},
            "loss.masked_prior_preservation_weight with method full: only a LoRA keeps the old model; turn it off.",
        ),
    ],
)
def test_settings_that_can_not_go_together_are_refused(path, settings, message):
    assert problems(path, **settings) == [(message, True)]
    assert problems(path, **{**settings, "method": "vae"}) == []  # a method without these settings


@pytest.mark.parametrize(("name", "value"), [("offset_noise_random", True), ("offset_noise_adaptive", 0.01)])
def test_a_change_of_the_offset_noise_without_any_is_worth_a_warning(name, value):
    path = f"diffusion.{name}"
    assert problems(path, diffusion={name: value, "offset_noise": 0.1}) == []
    message = f"{path} has no effect with diffusion.offset_noise 0; set that to 0.05, or reset this."
    assert problems(path, diffusion={name: value}) == [(message, False)]
    assert problems(path, diffusion={name: value}, method="vae") == []


def test_regularising_towards_the_model_without_such_pictures_is_worth_a_warning():
    path = "loss.prior_by_frozen_model"
    assert problems(path, loss={"prior_by_frozen_model": True}) == []
    ((message, blocking),) = problems(path, loss={"prior_by_frozen_model": True}, concepts=[ConceptConfig(path="a")])
    assert not blocking
    assert message.endswith("mark a concept with regularization, or turn it off.")


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": {"weighting": "debiased", "mse": 0.5, "huber": 0.5, "huber_schedule": "snr"}},
        {"loss": {"mse": 0, "log_cosh": 1.0}},
        {"loss": {"weighting": "sigma_sqrt"}, "family": "sd3", "diffusion": {"timesteps": "family"}},
        {"model": {"base": "a", "zero_terminal_snr": True, "prediction_type": "v_prediction"}},
        {"loss": {"masked_training": True, "masked_prior_preservation_weight": 1.0}},
    ],
)
def test_settings_that_go_together_are_let_through(settings):
    concepts = [ConceptConfig(path="a")]
    assert find_problems(TrainConfig(**{"concepts": concepts, "model": {"base": "a"}, **settings})) == []


def test_a_started_lora_beside_what_is_preserved_is_worth_a_warning():
    path, start = "lora.start_from", {"start_from": "a.safetensors"}
    priors = {"concepts": [ConceptConfig(path="a", regularisation=True)], "loss": {"prior_by_frozen_model": True}}
    masks = {"loss": {"masked_training": True, "masked_prior_preservation_weight": 1.0}}
    for settings in (priors, masks):
        ((message, blocking),) = problems(path, lora=start, **settings)
        assert "the base without that LoRA" in message
        assert not blocking
        assert problems(path, **settings) == []
    assert problems(path, lora=start) == []


def test_a_shift_that_the_timesteps_decide_themselves_is_worth_a_warning():
    path, settings = "diffusion.shift_by", {"shift_by": "factor", "shift": 2.0}
    ((message, blocking),) = problems(path, family="sd3", diffusion=settings)
    assert not blocking
    assert message.startswith("diffusion.shift_by factor has no effect with diffusion.timesteps trained")
    assert problems(path, family="sd3", diffusion={**settings, "timesteps": "uniform"}) == []
