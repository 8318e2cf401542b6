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


@pytest.mark.parametrize("kind", ["without images", pytest.param("pairs", marks=pytest.mark.proof), "preference"])
def test_ranks_that_share_the_model_train_a_slider_as_one(kind, settings, two_ranks, tiny_model, tmp_path):
    """With blocks that are computed again in the backward pass, at the strength that they had."""
    base = ("family=flux1", f"model.base={tiny_model('flux1')}", "model.weight_dtype=float64", "data.bucket_step=16")
    base += ("model.gradient_checkpointing=true", "max_steps=3", "output.dtype=float32")

    def file(name):
        save_config(settings(kind, *base, f"workspace_dir={tmp_path / name}"), tmp_path / f"{name}.yaml")
        return str(tmp_path / f"{name}.yaml")

    alone = run_alone(rank_scenarios.train, config=file("one"))
    first, second = two_ranks.run(rank_scenarios.train, config=file("two"), sync={"strategy": "fsdp"})
    assert torch.tensor(alone["losses"]).std() > 0  # a flat curve would prove nothing
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-6)
    assert first["norms"] == pytest.approx(alone["norms"], rel=1e-6)
    assert first["digest"] == second["digest"]


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["without images", "pairs", "preference"])
def test_compiled_blocks_train_a_slider_as_plain_ones(kind, settings, train, tiny_model, tmp_path):
    base = ("family=flux1", f"model.base={tiny_model('flux1')}", "data.bucket_step=16", "max_steps=3")

    def run(name, *overrides):
        torch._dynamo.reset()
        with torch.compiler.set_stance(force_backend="aot_eager"):
            trainer = train(settings(kind, *base, f"workspace_dir={tmp_path / name}", *overrides))
        return trainer.callbacks.losses

    torch._dynamo.utils.counters.clear()
    compiled = run("compiled", "model.compile=blocks", "model.gradient_checkpointing=true")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"]
    torch._dynamo.reset()
    assert compiled == pytest.approx(run("plain"), rel=1e-4)
