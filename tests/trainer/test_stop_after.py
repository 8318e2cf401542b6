"""A part that stops after some steps or epochs no longer changes by a single bit, and the others train on."""

from __future__ import annotations

import itertools

import pytest
import torch

from modules.config.errors import ConfigError
from modules.config.files import save_config
from modules.config.optimizers import OPTIMIZERS
from tests.support import rank_scenarios
from tests.support.RankPool import run_alone
from tests.support.stop_after import stop_after

# Eleven images in steps of 4, 4 and 3.
RUN = ("method=full", "text_encoder.train=true", "max_steps=8", "backup.at_end=false", "schedule.name=cosine")
STOP = ("text_encoder.stop_after=3", "text_encoder.stop_unit=steps")


def part(trainer, name):
    return {key: param.detach().clone() for key, param in trainer.loop.trainable.items() if key.startswith(f"{name}.")}


def watch(trainer):
    """The weights of the trainer's parts after each step."""
    states, step = [], trainer.loop.train_step

    def train_step(work):
        step(work)
        states.append({name: part(trainer, name) for name in ("unet", "text_encoder")})

    trainer.loop.train_step = train_step
    return states


def moved(states, name):
    """Whether each step after the first changed any bit of a part."""
    pairs = itertools.pairwise(states)
    return [any(not torch.equal(before[name][key], after[name][key]) for key in after[name]) for before, after in pairs]


@pytest.mark.parametrize(
    ("settings", "last"),
    [(STOP, 3), (("text_encoder.stop_after=1.5", "text_encoder.stop_unit=epochs"), 5)],
    ids=["steps", "epochs"],
)
def test_a_stopped_part_stays_unchanged_and_the_other_trains_on(settings, last, make_config, start):
    trainer = start(make_config(*RUN, *settings))
    states = watch(trainer)
    trainer.train()
    assert moved(states, "unet") == [True] * 7
    assert moved(states, "text_encoder") == [True] * (last - 1) + [False] * (8 - last)
    rates = [info.metrics["lr/text_encoder"] for info in trainer.callbacks.steps]
    assert all(rate > 0 for rate in rates[:last])
    assert rates[last:] == [0.0] * (8 - last)
    assert all(info.metrics["lr/unet"] > 0 for info in trainer.callbacks.steps)


@pytest.mark.parametrize("name", sorted(name for name, facts in OPTIMIZERS.items() if facts.package != "bitsandbytes"))
def test_no_optimizer_touches_a_stopped_part(name, make_config, start):
    rate = 1.0 if name == "prodigy" else 1e-3
    settings = (f"optimizer.name={name}", f"optimizer.learning_rate={rate}", "optimizer.weight_decay=0.1")
    trainer = start(make_config(*RUN[:-1], *STOP, *settings, "max_steps=5", "schedule.name=constant"))
    states = watch(trainer)
    trainer.train()
    assert moved(states, "text_encoder")[2:] == [False, False]
    assert all(moved(states, "unet")[2:])


def test_a_part_trains_normally_before_it_stops(make_config, start, tmp_path):
    ends = []
    for number, settings in enumerate((STOP, ())):
        trainer = start(make_config(*RUN, *settings, f"workspace_dir={tmp_path / str(number)}"))
        states = watch(trainer)
        trainer.train()
        ends.append((states[2], trainer.callbacks.losses[:3]))
    assert ends[0][1] == ends[1][1]
    for name in ("unet", "text_encoder"):
        assert all(torch.equal(tensor, ends[1][0][name][key]) for key, tensor in ends[0][0][name].items())


def test_a_stopped_part_stays_stopped_after_a_resume(make_config, start, train, tmp_path):
    settings = (*RUN, *STOP, "backup.every=4", "backup.unit=steps", "backup.keep=9")
    straight = train(make_config(*settings, f"workspace_dir={tmp_path / 'straight'}"))
    config = make_config(*settings)
    first = start(config)
    stop_after(first, 5)
    first.train()
    first.end()
    assert 3 < first.step < 8  # a backup may read the request a step earlier
    resumed = start(config, resume=True)
    states = watch(resumed)
    resumed.train()
    assert not any(moved(states, "text_encoder"))
    assert resumed.callbacks.losses == straight.callbacks.losses[first.step :]
    for name in ("unet", "text_encoder"):
        assert all(torch.equal(tensor, part(straight, name)[key]) for key, tensor in part(resumed, name).items())


def test_two_ranks_stop_a_part_at_the_same_step_as_one(make_config, two_ranks, tmp_path):
    outcomes = {}
    for name, run in {"one": run_alone, "two": two_ranks.run}.items():
        settings = ("batch_size=4", "batch_size_mode=global", "model.weight_dtype=float64")
        config = make_config(*RUN, *STOP, *settings, f"workspace_dir={tmp_path / name}")
        save_config(config, tmp_path / f"{name}.yaml")
        outcomes[name] = run(rank_scenarios.train, config=str(tmp_path / f"{name}.yaml"))
    one, two = outcomes["one"], outcomes["two"]
    assert two[0]["digest"] == two[1]["digest"]
    assert two[0]["losses"] == pytest.approx(one["losses"], rel=1e-9)


def test_parts_that_all_stop_before_the_end_are_refused(make_config, start):
    settings = (*RUN, *STOP, "denoiser.stop_after=2", "denoiser.stop_unit=epochs")
    message = r"^denoiser\.stop_after and text_encoder\.stop_after leave nothing to train after step 6 of 8: let a part"
    with pytest.raises(ConfigError, match=message):
        start(make_config(*settings))


def test_a_part_has_its_own_weight_decay(make_config, start):
    trainer = start(make_config(*RUN, "text_encoder.weight_decay=0.0", "optimizer.weight_decay=0.3"))
    decays = {group["name"]: group["weight_decay"] for group in trainer.loop.optimizer.torch.param_groups}
    assert decays == {"unet": 0.3, "text_encoder": 0.0}
