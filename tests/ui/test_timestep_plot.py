"""The plots of timesteps and weights show what the training draws and computes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from diffusers import CogVideoXDDIMScheduler

from modules.config.DataConfig import DataConfig
from modules.config.DiffusionConfig import DiffusionConfig
from modules.config.LossConfig import LossConfig
from modules.config.TrainConfig import TrainConfig
from modules.diffusion.loss_weights import timestep_weight
from modules.families.prediction import objective_of
from modules.families.registry import FAMILIES
from modules.ui.models.noise_preview import NUM_BARS, read_schedule, timestep_bars, weight_bars
from modules.weights.schedulers import scheduler_by_files

FLOW = TrainConfig(family="flux1")


def drawn(config: TrainConfig, schedule=None) -> np.ndarray:
    return np.array(timestep_bars(config, schedule).heights)


def test_uniform_timesteps_are_bars_of_one_height():
    bars = timestep_bars(TrainConfig(), None)
    assert bars.heights == (1.0,) * NUM_BARS
    assert bars.note == "Half of the samples have timesteps above 500."
    half = drawn(replace(FLOW, diffusion=DiffusionConfig(timesteps="uniform", min_timestep=500)))
    assert set(half[: NUM_BARS // 2]) == {0.0}
    assert (half[NUM_BARS // 2 :] > 0.9).all()


def test_a_distribution_has_its_density():
    heights = drawn(replace(FLOW, diffusion=DiffusionConfig(timesteps="beta", beta_alpha=2, beta_beta=5)))
    t = (np.arange(NUM_BARS) + 0.5) / NUM_BARS
    density = t * (1 - t) ** 4
    np.testing.assert_allclose(heights, density / density.max(), atol=0.02)


def test_the_models_own_shift_is_that_of_its_folder(tmp_path):
    config = replace(FLOW, diffusion=DiffusionConfig(timesteps="family"))
    assert "only a diffusers folder" in timestep_bars(config, None).note
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler/scheduler_config.json").write_text(json.dumps({"shift": 3.0}))
    bars = timestep_bars(config, read_schedule(str(tmp_path)))
    assert bars.note == "Half of the samples have timesteps above 750."  # 3 x 1/2 / (1 + 2 x 1/2)
    by_size = timestep_bars(config, {"use_dynamic_shifting": True})
    assert by_size.note.endswith("For images of 512 x 512 pixels.")
    assert read_schedule(str(tmp_path / "gone")) is None


def test_timesteps_as_the_makers_train_need_no_folder_and_count_the_frames_of_a_clip():
    assert timestep_bars(TrainConfig(family="zimage"), None).note == "Half of the samples have timesteps above 500."
    clips = TrainConfig(family="ltx2", data=DataConfig(frames=121, resolution=640))
    note = timestep_bars(clips, None).note
    assert note.endswith("For clips of 121 frames and 640 x 640 pixels.")
    image = timestep_bars(replace(clips, data=DataConfig(resolution=640)), None).note
    assert image.endswith("For images of 640 x 640 pixels.")
    assert note.split()[7] > image.split()[7]  # more noise


def test_experts_have_their_shares_in_the_plot(tmp_path):
    config = TrainConfig(family="wan22_a14b")
    half = "Half of the samples have timesteps above"
    expert = "The expert for high noise has those from"
    assert timestep_bars(config, {"flow_shift": 3.0}).note == f"{half} 875. {expert} 875 on, 50%."
    by_timestep = replace(config, diffusion=DiffusionConfig(expert_share=None))
    assert timestep_bars(by_timestep, {"flow_shift": 3.0}).note == f"{half} 750. {expert} 875 on, 20%."
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler/scheduler_config.json").write_text('{"flow_shift": 3.0}')
    (tmp_path / "model_index.json").write_text('{"boundary_ratio": 0.9}')
    assert timestep_bars(config, read_schedule(str(tmp_path))).note == f"{half} 900. {expert} 900 on, 50%."


@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction"])
@pytest.mark.parametrize(
    ("family", "weighting", "schedule"),
    [
        ("sd15", "min_snr_gamma", {}),
        ("sd15", "debiased", {"beta_start": 0.0001, "beta_end": 0.02, "beta_schedule": "linear"}),
        ("sdxl", "p2", {"rescale_betas_zero_snr": True}),
        ("cogvideox", "min_snr_gamma", {"snr_shift_scale": 3.0}),
        ("flux1", "sigma_sqrt", {}),
        ("flux1", "cosmap", {}),
    ],
)
def test_the_weights_are_those_of_the_loss(family, weighting, schedule, prediction_type):
    sd = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "num_train_timesteps": 1000}
    schedule = {**sd, **schedule, "prediction_type": prediction_type}
    config = TrainConfig(family=family, loss=LossConfig(weighting=weighting))
    u = (torch.arange(NUM_BARS, dtype=torch.float64) + 0.5) / NUM_BARS
    weights = timestep_weight(config.loss, u, objective_of(FAMILIES[family], schedule).snr, prediction_type)
    heights = weight_bars(config, schedule).heights
    np.testing.assert_allclose(heights, (weights / weights.max()).numpy(), rtol=1e-3, atol=1e-6)


def test_a_shift_of_the_noise_schedule_counts_only_where_the_family_trains_with_it():
    base = CogVideoXDDIMScheduler(snr_shift_scale=3.0)
    config = TrainConfig(family="cogvideox_fun", loss=LossConfig(weighting="min_snr_gamma"))
    family = FAMILIES[config.family]
    trained = scheduler_by_files(base, family, config.model)
    u = (torch.arange(NUM_BARS, dtype=torch.float64) + 0.5) / NUM_BARS
    weights = timestep_weight(config.loss, u, objective_of(family, trained.config).snr, "epsilon")
    heights = weight_bars(config, base.config).heights
    np.testing.assert_allclose(heights, (weights / weights.max()).numpy(), rtol=1e-3, atol=1e-6)


def test_nothing_is_drawn_where_there_is_nothing_to_see():
    assert weight_bars(TrainConfig(), None) is None
    assert weight_bars(replace(FLOW, loss=LossConfig(weighting="p2")), None) is None  # which is refused
    vae = TrainConfig(method="vae", loss=LossConfig(weighting="p2"))
    assert timestep_bars(vae, None) is weight_bars(vae, None) is None
    squared = weight_bars(TrainConfig(loss=LossConfig(weighting="p2")), {"beta_schedule": "squaredcos_cap_v2"})
    assert (squared.heights, squared.note) == (
        (), "No preview for the base model's noise schedule, squaredcos_cap_v2."
    )  # fmt: skip


def test_the_plots_follow_the_settings(app, wait_for):
    app.set_show_all(True)
    tab = app.open_tab("training")
    tab.page.finish()
    wait_for(app, lambda: tab.timesteps.canvas.heights)
    assert not tab.weights.winfo_ismapped()
    app.settings.set("diffusion.timesteps", "logit_normal")
    app.settings.set("diffusion.logit_normal_mean", 1.0)
    app.settings.set("loss.weighting", "min_snr_gamma")
    wait_for(app, lambda: tab.timesteps.note.cget("text") == "Half of the samples have timesteps above 731.")
    wait_for(app, lambda: tab.weights.canvas.heights)
    wait_for(app, lambda: len(tab.weights.canvas.find_withtag("all")) > NUM_BARS // 2)
    app.settings.set("loss.weighting", "constant")
    wait_for(app, lambda: not tab.weights.winfo_ismapped())
