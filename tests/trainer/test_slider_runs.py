"""Complete runs of concept sliders, without images and from pairs, and of preferences: resumed, and on two ranks."""

from __future__ import annotations

import pytest
import torch

from modules.config.files import save_config
from tests.support import rank_scenarios
from tests.support.RankPool import run_alone

PROMPTS = ("slider.target=a cat", "slider.positive=old", "slider.negative=young", "slider.denoising_steps=2")
RUN = ("method=slider", "batch_size=8", "batch_size_mode=global", "optimizer.learning_rate=0.003")
KINDS = ["without images", "with images", "pairs", "preference"]


@pytest.fixture
def settings(make_config, picture_folder, tmp_path):
    """Returns a function that makes the settings of a run of one of `KINDS`."""
    weak = tmp_path / "weak"

    def make(kind, *overrides):
        others = weak if weak.exists() else picture_folder(((40, 32),) * 11, name=weak.name)
        if kind == "pairs":
            return make_config(*RUN, "slider.source=pairs", f"concepts.0.pair_folder={others}", *overrides)
        if kind == "preference":
            return make_config(*RUN, "method=preference", f"concepts.0.pair_folder={others}", *overrides)
        without = ("concepts=[]",) if kind == "without images" else ()
        return make_config(*RUN, *PROMPTS, *without, *overrides)

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_slider_ends_as_the_undisturbed_one(kind, settings, train, tmp_path):
    whole = train(settings(kind, "max_steps=4", f"workspace_dir={tmp_path / 'whole'}"))
    train(settings(kind, "max_steps=2", "backup.at_end=true"))
    resumed = train(settings(kind, "max_steps=4"), resume=True)
    assert resumed.callbacks.losses == whole.callbacks.losses[2:]
    for name, value in whole.loop.trainable.items():
        assert torch.equal(resumed.loop.trainable[name], value), name


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_train_a_slider_as_one(kind, settings, two_ranks, tmp_path):
    def file(name, *overrides):
        config = settings(kind, "model.weight_dtype=float64", f"workspace_dir={tmp_path / name}", *overrides)
        save_config(config, tmp_path / f"{name}.yaml")
        return str(tmp_path / f"{name}.yaml")

    alone = run_alone(rank_scenarios.train, config=file("one"))
    first, second = two_ranks.run(rank_scenarios.train, config=file("two"))
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-6)
    assert first["digest"] == second["digest"]
