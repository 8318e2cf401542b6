"""Models with several denoisers, each with its own timesteps: a step does not change unused denoisers on any rank."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from modules.config.errors import ConfigError
from modules.config.files import save_config
from modules.weights.safe import load_tensors
from tests.support import rank_scenarios
from tests.support.RankPool import run_alone

RUN = ("family=wan22_a14b", "data.bucket_step=16", "backup.at_end=false", "optimizer.weight_decay=0.1")


def changed(folder: Path) -> dict[str, bool]:
    """Whether the run changed the weights of each expert, by its name."""
    before, after = (load_tensors(folder / f"{when}-0.safetensors") for when in ("before", "after"))
    experts = {name.split(".")[0] for name in before}
    return {
        expert: any(not torch.equal(before[name], after[name]) for name in before if name.startswith(f"{expert}."))
        for expert in experts
    }


@pytest.fixture
def settings(make_config, tiny_model, tmp_path):
    """Returns a function that writes settings of a run in the folder `name` and returns (their file, weights file)."""

    def write(name: str, *overrides: str) -> dict[str, str]:
        base = f"model.base={tiny_model('wan22_a14b')}"
        config = make_config(*RUN, base, f"workspace_dir={tmp_path / name}", *overrides)
        file, weights = tmp_path / f"{name}.yaml", tmp_path / f"weights-{name}"
        save_config(config, file)
        weights.mkdir()
        return {"config": str(file), "weights": str(weights)}

    return write


def test_two_ranks_equal_one_even_if_they_use_different_experts(settings, two_ranks, tmp_path):
    # eleven images in steps of two: in the last step of an epoch one rank has none
    options = ("batch_size=2", "batch_size_mode=global", "method=full", "max_steps=12")
    alone = run_alone(rank_scenarios.train, **settings("one", *options))
    first, second = two_ranks.run(rank_scenarios.train, **settings("two", *options))
    assert first["digest"] == second["digest"]
    assert first["samples"] == alone["samples"] == [2, 2, 2, 2, 2, 1] * 2
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert first["norms"] == pytest.approx(alone["norms"], rel=1e-4)
    assert changed(tmp_path / "weights-two") == {"transformer": True, "transformer_2": True}


def test_an_unused_expert_does_not_change(settings, two_ranks, tmp_path):
    noisy = ("batch_size=2", "method=full", "diffusion.min_timestep=600", "max_steps=3")
    two_ranks.run(rank_scenarios.train, **settings("noisy", *noisy))
    # neither by a gradient nor by weight decay
    assert changed(tmp_path / "weights-noisy") == {"transformer": True, "transformer_2": False}


@pytest.mark.parametrize(
    ("expert", "name", "timesteps"), [("high", "transformer", (500, 1000)), ("low", "transformer_2", (0, 500))]
)
def test_a_lora_of_one_expert_trains_on_its_timesteps_without_loading_the_other(
    expert, name, timesteps, make_config, tiny_model, train
):
    options = (f"model.base={tiny_model('wan22_a14b')}", f"denoiser.expert={expert}", "max_steps=4")
    trainer = train(make_config(*RUN, *options))
    base = trainer.prepared.base
    other = {"transformer": "transformer_2", "transformer_2": "transformer"}[name]
    assert (base.is_loaded(name), base.is_loaded(other)) == (True, False)
    low, high = timesteps
    drawn = [1000 * trainer.prepared.source.timesteps.at(u / 100, (16, 1, 4, 4)) for u in range(100)]
    assert low <= min(drawn) < low + 10
    assert high - 20 < max(drawn) < high
    assert not trainer.prepared.loss.unused_parameters
    files = sorted(path.name for path in trainer.run_folder.models_dir.glob("*.safetensors"))
    assert files == [f"model{'' if expert == 'high' else '_transformer_2'}.safetensors"]


def test_the_expert_for_high_noise_gets_its_share(make_config, tiny_model, train):
    options = (f"model.base={tiny_model('wan22_a14b')}", "diffusion.expert_share=0.25", "max_steps=1")
    timesteps = train(make_config(*RUN, *options)).prepared.source.timesteps
    drawn = [timesteps.at((number + 0.5) / 100, (16, 1, 4, 4)) for number in range(100)]
    assert sum(t >= 0.5 for t in drawn) == 25


def test_one_expert_is_sampled_with_the_other_as_it_was(make_config, tiny_model, train):
    sample = {"prompt": "a cat", "width": 32, "height": 32, "steps": 2, "guidance": 2}
    samples = [f"sampling.samples.0.{key}={value}" for key, value in sample.items()]
    options = (f"model.base={tiny_model('wan22_a14b')}", "denoiser.expert=low", "max_steps=2", "sampling.at_end=true")
    trainer = train(make_config(*RUN, *options, *samples))
    assert len(trainer.callbacks.samples) == 1
    assert {key.split(".")[0] for key in trainer.loop.trainable} == {"transformer_2"}


def test_timesteps_that_an_expert_does_not_have_are_refused(make_config, tiny_model, train):
    options = (f"model.base={tiny_model('wan22_a14b')}", "denoiser.expert=high", "diffusion.max_timestep=500")
    with pytest.raises(ConfigError, match=r"denoiser\.expert high: it has the timesteps 500 to 1000, and diffusion"):
        train(make_config(*RUN, *options))
